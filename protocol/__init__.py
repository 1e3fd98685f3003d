"""What all processes agree on: values, messages, the codec and the error tree.

Pure data. Imports nothing of the project and nothing that touches the outside world, so that a scheduler, a
simulator and a worker can all depend on it.
"""
