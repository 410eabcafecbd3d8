"""Tables in memory, and the statistics that turn their columns into numbers."""
