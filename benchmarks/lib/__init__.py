"""What the benchmarks share: timing, contenders, processes, the peers' jobs, and the suite."""
