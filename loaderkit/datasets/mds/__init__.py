"""Samples of MDS shards, as mosaicml-streaming writes them, read in place."""
