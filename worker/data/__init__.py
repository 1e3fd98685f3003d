"""Which samples each virtual worker reads in each step, and how they are read ahead."""
