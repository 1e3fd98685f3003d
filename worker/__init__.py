"""One process on one GPU: membership, communicators, the gradient reduction, and what a training script sees."""
