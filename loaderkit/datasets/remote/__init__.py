"""Files behind URLs, and the local cache of them."""
