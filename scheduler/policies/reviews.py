"""Tolerances of the time at which a policy asks for its next call (`Shares.review_s`).

The time is met only nearly: a controller comes to it some milliseconds later, and sums of times are rounded. Policies
with turns must recognise a finished turn as finished. They must not take a turn that has begun only by that delay for
one in progress.
"""

from __future__ import annotations

LATE_S = 1.0  # a turn that has begun less than this ago counts as not yet begun
EARLY_S = 1e-3  # a turn with so little left counts as over; Unix times in seconds are rounded to 2.4e-7
