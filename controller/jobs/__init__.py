"""Jobs: their records, the state derived from these, and the indices to find jobs."""
