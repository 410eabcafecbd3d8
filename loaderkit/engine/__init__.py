"""Who makes the batches: this process, its threads, or worker processes."""
