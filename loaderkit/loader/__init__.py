"""The Loader: settings, the position in the data, state in and out."""
