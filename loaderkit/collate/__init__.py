"""From a list of samples to a batch."""
