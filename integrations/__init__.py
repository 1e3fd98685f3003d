"""Other people's training loops on this runtime (docs/frameworks.md). Each module needs its framework, and nothing else does.

There are two kinds. A *host loop* calls the user's step (both Trainers): it gets one item for each global step, and runs the
step for each virtual worker hosted here inside. A *written-out loop* (Fabric, accelerate, a DDP script) is the user's own code:
its body runs once for each virtual worker, and what belongs to a global step waits for the last of them (`bodies`).

A framework looks for the variables of a launcher as soon as its arguments are made, perhaps before the script has joined. So they
are taken away when an adapter is imported.
"""

import os

from ..worker.admission import leave_gang

leave_gang(os.environ)
