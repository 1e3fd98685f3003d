"""Several hosts on one machine, each with its own network, processes, files and names (`lab`)."""
