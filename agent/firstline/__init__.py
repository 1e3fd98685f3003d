"""What a worker's interpreter does before a script's first line."""
