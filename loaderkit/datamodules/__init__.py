"""LightningDataModules whose training resumes exactly."""

from loaderkit.datamodules.base import DataModule

__all__ = ["DataModule"]
