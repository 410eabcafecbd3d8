"""The `loaderkit` command."""

from loaderkit.cli.command import main

__all__ = ["main"]
