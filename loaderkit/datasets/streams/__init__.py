"""Streams: data without an index. Each named shard is read in sequence, from any sample on."""
