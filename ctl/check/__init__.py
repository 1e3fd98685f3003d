"""`elasticctl check`: whether a script's result depends on how many workers train it, tried at the desk."""
