"""The peers, one file each, and the questions that they answer together."""
