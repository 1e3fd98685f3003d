"""`elasticctl doctor`: faults of this machine, and their remedies. `command` is the command, `checks` defines a check."""
