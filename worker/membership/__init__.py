"""Which generation a worker is in, and how its members come to the next one together. Pure."""
