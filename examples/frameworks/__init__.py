"""One small training, written for each framework (docs/frameworks.md). `make verify-scripts` compares their results."""
