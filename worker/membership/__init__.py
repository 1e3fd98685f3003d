"""Which generation a worker is in, and how the members of a roster switch to the next one together. Pure."""
