"""Samples in tar shards in the WebDataset layout, read by seeking."""
