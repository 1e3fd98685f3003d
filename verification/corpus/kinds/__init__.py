"""Scripts of the corpus by the kind of state that they keep."""
