"""Datasets of samples in memory, files, object stores and streams, and the policy for samples that cannot be read."""
