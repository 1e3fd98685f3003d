"""Values, messages, codec and error tree that all processes share.

Pure data: this package imports nothing else of the project and nothing that touches the outside world, so that the
scheduler, the simulator and the worker can all depend on it.
"""
