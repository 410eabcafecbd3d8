"""`loaderkit bench`: measure engines and worker counts, and what each part of a batch costs."""
