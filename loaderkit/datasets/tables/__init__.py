"""Tables in memory, and the statistics of the training data that turn columns into numbers."""
