"""Rows of Parquet, Arrow and Feather files, read through pyarrow."""

from loaderkit.datasets.arrow.parquet import ParquetDataset

__all__ = ["ParquetDataset"]
