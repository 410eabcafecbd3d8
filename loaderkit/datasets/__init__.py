"""Where samples are: memory, files, object stores, streams; and what happens if one cannot be read."""
