"""Rows of Parquet, Arrow and Feather files, read through pyarrow."""
