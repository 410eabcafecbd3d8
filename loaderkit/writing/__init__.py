"""From a dataset to shards: tar, Parquet or token files."""
