"""Requests for screens that stay open, shared by `elasticctl web` and `elasticctl top`.

`sources` requests the data of a page from the controller; `upstream` does so once in an interval, however many viewers
there are, and keeps the last answer while no controller answers; `tails` keeps the last lines of followed logs and the
last events.
"""
