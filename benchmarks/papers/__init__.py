"""Published results of papers, results of their authors' simulators, and results of this simulator, side by side."""
