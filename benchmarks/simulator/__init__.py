"""Speed of simulations and of scheduling decisions: `make bench-simulator`."""
