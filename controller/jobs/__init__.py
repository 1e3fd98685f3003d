"""What a job is: its record, what follows from it, and where jobs are found."""
