"""Tables of measured throughput, read from files: the controller takes known models from them, and so does the
simulator."""
