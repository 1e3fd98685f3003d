"""Code that a worker's interpreter runs before a script's first line."""
