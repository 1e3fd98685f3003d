"""Adapters of other training frameworks to this runtime (docs/frameworks.md). Each module needs its framework, and no
other module does.

There are two kinds. A *host loop* calls the user's step (both Trainers): the loop gets one item for each global step,
and runs the step inside it for each virtual worker hosted on this worker. A *written-out loop* (Fabric, accelerate, a
DDP script) is the user's own code: its body runs once for each virtual worker, and operations of the global step wait
for the last of them (`bodies`).

A framework reads a launcher's environment variables as soon as its arguments are made, perhaps before the script has
joined. So importing an adapter removes these variables.
"""

import os

from ..worker.admission import leave_gang

leave_gang(os.environ)
