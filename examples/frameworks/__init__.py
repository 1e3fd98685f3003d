"""One small training, written out in each framework's way (docs/frameworks.md). `make verify-scripts` compares their results."""
