"""Files at a path or URL: requests, a cache of local copies, atomic writes, and formats known by their first bytes."""
