"""Other people's training loops on this runtime (docs/frameworks.md). Each module needs its framework, and nothing else does.

There are two kinds. A *host loop* calls the user's step (both Trainers): it gets one item for each global step, and runs the
step for each virtual worker hosted here inside. A *written-out loop* (Fabric, accelerate, a DDP script) is the user's own code:
its body runs once for each virtual worker, and what belongs to a global step waits for the last of them (`bodies`).
"""
