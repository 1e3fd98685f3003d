"""Common base of all processes: clock, event loop, transport, configuration, logs, readiness. Does not import torch."""
