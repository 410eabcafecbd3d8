"""Read samples from the chunks that litdata writes, without converting them."""
