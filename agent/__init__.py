"""The daemon of one server: what the server has, its workers' processes, and the line between them and the controller."""
