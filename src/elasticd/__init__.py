"""elasticctl: elastic training on your own GPU servers.

A training script needs one import::

    import elasticd as elastic

    run = elastic.join()

torch is loaded when `join` is called, not before: the daemons and ``elasticctl`` import this package too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from .ctl.api import Cluster
    from .worker.api import Lines, Run, Shards, TarSamples, join

__all__ = ["Cluster", "Lines", "Run", "Shards", "TarSamples", "__version__", "join"]


def __getattr__(name: str) -> object:
    if name == "Cluster":
        from .ctl.api import Cluster

        return Cluster
    if name in __all__:
        from .worker import api

        return getattr(api, name)
    raise AttributeError(f"module 'elasticd' has no attribute {name!r}")
