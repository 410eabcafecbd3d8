"""`loaderkit bench`: how fast data comes with which engine and how many workers, and what a batch costs."""

from loaderkit.cli.bench.command import add_to

__all__ = ["add_to"]
