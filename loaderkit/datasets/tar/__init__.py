"""Tar shards in the WebDataset layout."""
