"""In which order samples come and which batch they join: pure functions of (seed, epoch, position)."""
