"""Read and collate batches in one process: replace bad samples, measure lengths, filter, pack."""
