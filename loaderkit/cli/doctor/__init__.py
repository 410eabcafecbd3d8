"""`loaderkit doctor`: what of this machine, and of a dataset, stands in a loader's way."""

from loaderkit.cli.doctor.command import add_to

__all__ = ["add_to"]
