"""One process on one GPU: membership, communicators, the gradient reduction, and the API of a training script."""
