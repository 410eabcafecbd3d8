"""Tar shards: the WebDataset layout, Megatron Energon's folders and lhotse's Shar, read by random access."""
