"""Tolerances of the time at which a policy asks for its next call (`Shares.review_s`).

A policy is not called exactly at this time: a controller is some milliseconds late, and sums of times are rounded.
Policies with turns must nevertheless recognise that a turn is over, and must not count a turn that has begun only
because of that delay as one in progress.
"""

from __future__ import annotations

LATE_S = 1.0  # a turn that has begun less than this ago counts as not yet begun
EARLY_S = 1e-3  # a turn with so little left counts as over; Unix times in seconds are rounded to 2.4e-7
