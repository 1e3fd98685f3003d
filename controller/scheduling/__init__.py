"""One pipeline, many policies: a frozen view in, shares and placements out. Pure."""
