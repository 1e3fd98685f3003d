"""Choice of each job's GPUs, once the number is known. Pure."""
