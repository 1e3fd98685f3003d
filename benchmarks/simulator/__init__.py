"""How fast simulations and decisions are: `make bench-simulator`."""
