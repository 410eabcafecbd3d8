"""How much of each training step is spent waiting for data, and what to do about it."""
