"""The daemon of one server: its devices, its workers' processes, and the connection between them and the controller."""
