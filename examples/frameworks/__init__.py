"""One small training, written out in each framework's way (docs/scripts.md). `make verify-scripts` compares their results."""
