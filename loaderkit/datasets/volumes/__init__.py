"""Patches of volumes, such as CT scans: cut at random for training, or on a grid for inference."""
