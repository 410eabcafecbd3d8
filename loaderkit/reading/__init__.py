"""From samples to a batch, without workers: read, repair, measure, pack."""
