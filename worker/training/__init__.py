"""What the training thread does next: its table of states, and the rules of each. Pure."""
