"""A training script's source: which statements bind, read and change its variables, and what depends on their values."""
