"""Variables that a training script keeps beside the job's state: found, compared by name, and carried to new workers."""
