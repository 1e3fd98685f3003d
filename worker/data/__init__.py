"""Which samples each virtual worker reads in each step, and how batches are read ahead."""
