"""Patches of volumes."""
