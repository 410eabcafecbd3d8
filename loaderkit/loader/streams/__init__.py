"""The position in a stream, over ranks and workers, and its state."""
