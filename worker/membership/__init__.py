"""Membership: the generation of a worker, and the joint switch of a roster's members to the next one. Pure."""
