"""Make a batch from a list of samples. The default, `stack`, is in `system/stack.py`: streams use it too."""
