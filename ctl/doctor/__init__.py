"""`elasticctl doctor`: what is wrong here, and what mends it. `command` is the command, `checks` says what a check is."""
