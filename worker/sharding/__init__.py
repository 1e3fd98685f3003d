"""An optimizer's state, divided among the workers of a job: each updates its part of the parameters (ZeRO-1)."""
