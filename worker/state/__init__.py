"""A job's training state: its parts, its transfer to other workers, and its form on disk."""
