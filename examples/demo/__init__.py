"""The demo: three jobs share a small cluster of real processes, in front of your eyes. Run by `make demo`."""
