"""Samples of chunks that litdata writes, read in place."""
