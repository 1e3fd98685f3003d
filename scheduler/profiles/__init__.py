"""Tables of measured throughput, read from files, for the controller and the simulator."""
