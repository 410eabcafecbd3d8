"""Shards with an index: lines, CSV, NumPy arrays, tokens."""
