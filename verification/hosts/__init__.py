"""Several hosts on one machine: network, processes, files and names of each are its own (`lab`)."""
