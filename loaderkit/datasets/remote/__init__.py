"""Files at URLs, and their local cache."""
