"""Tables of measured throughput, read from files: for the controller, which knows models from them, and for the simulator."""
