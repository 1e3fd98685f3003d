"""A job's training state: what belongs to it, how it travels to other workers, and how it lies on disk."""
