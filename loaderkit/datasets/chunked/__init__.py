"""Arrays that are stored in chunks: HDF5 and Zarr."""
