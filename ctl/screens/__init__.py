"""Screens that stay open (`elasticctl web`, `elasticctl top`) ask for the same things, in one way.

`sources` asks the controller for what a page shows; `upstream` does so once in an interval, however many viewers there are, and
keeps the last answer while no controller answers; `tails` keeps the last lines of followed logs and the last events.
"""
