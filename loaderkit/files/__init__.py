"""The bytes at a path or a URL: requests, copies in a cache, whole files, and what their first bytes say."""
