"""Idle GPUs that come and go every two minutes, and what a job gains from them (EDL 6.2, Fig. 8)."""
