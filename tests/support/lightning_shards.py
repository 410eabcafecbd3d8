"""What several tests share: under Lightning: streams in a DataModule, with a known length and without: stopped in any way, resumed exactly."""

SHARDS = [9, 0, 14, 3, 1, 8, 15]
