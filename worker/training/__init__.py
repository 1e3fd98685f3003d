"""Instructions for the training thread: its table of states, and the rules of each. Pure."""
