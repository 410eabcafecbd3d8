"""The `loaderkit` command."""
