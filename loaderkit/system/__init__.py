"""What the machine, its processes, threads and memory allow; knows nothing of data."""
