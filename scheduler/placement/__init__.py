"""Which GPUs each job gets, once it is known how many. Pure."""
