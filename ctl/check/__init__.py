"""`elasticctl check`: a local test of whether a script's result depends on the number of workers that train it."""
