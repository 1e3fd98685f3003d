"""How the workers of one generation find each other, and what they say to each other over the data plane."""
