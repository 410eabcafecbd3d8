"""Worker processes that write batches into shared memory, which is reused."""
