"""Copy batches from the host to the device before they are used, and transform them there."""
