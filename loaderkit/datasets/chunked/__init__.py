"""Arrays that files keep in chunks: HDF5 and Zarr."""
