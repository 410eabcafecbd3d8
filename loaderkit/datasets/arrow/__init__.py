"""Columnar files, read through pyarrow."""
