"""Data without an index: named shards, each read from a sample on."""
