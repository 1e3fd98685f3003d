"""Data of a job: the samples of each virtual worker in each step, and the reading of batches."""
