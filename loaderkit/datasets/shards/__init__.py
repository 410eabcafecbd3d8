"""Datasets over indexed shards: JSON lines, CSV, NumPy arrays, tokens, safetensors, ArrayRecord."""
