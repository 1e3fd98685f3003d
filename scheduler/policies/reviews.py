"""How exactly a policy is asked again at the time that it has asked for (`Shares.review_s`).

Only nearly: a controller comes to it some milliseconds later, and sums of times are rounded. Policies that give out
turns must see a turn that is over as over, and must not take one that has just begun by that delay for one in progress.
"""

from __future__ import annotations

LATE_S = 1.0  # a turn that has begun less than this ago counts as not yet begun
EARLY_S = 1e-3  # a turn that has so little left counts as over; Unix times in seconds are rounded to 2.4e-7
