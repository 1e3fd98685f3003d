"""Jobs that really train, each a folder with a script and a job file; and the demo, which runs them all."""
