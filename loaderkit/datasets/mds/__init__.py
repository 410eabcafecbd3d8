"""Read samples from MDS shards, which mosaicml-streaming writes, without converting them."""
