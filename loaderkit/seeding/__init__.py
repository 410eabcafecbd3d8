"""Which random numbers belong to which sample."""
