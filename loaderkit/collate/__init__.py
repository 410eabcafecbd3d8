"""From a list of samples to a batch. The default, `stack`, is in `system/stack.py`: a stream's `batch` needs it, too."""
