"""The package `elasticd` under the name of its distribution: ``import elasticctl as elastic`` works as well.

Each ``elasticctl.X`` is the module ``elasticd.X`` itself, not a second copy, so classes and exceptions of both names are the same.
The pages use `elasticd`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import elasticd

if TYPE_CHECKING:
    from elasticd import Cluster as Cluster
    from elasticd import Lines as Lines
    from elasticd import Run as Run
    from elasticd import Shards as Shards
    from elasticd import TarSamples as TarSamples
    from elasticd import __version__ as __version__
    from elasticd import join as join


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``elasticctl.X`` in the module ``elasticd.X``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        return importlib.machinery.ModuleSpec(fullname, self) if package == "elasticctl" and rest else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module("elasticd." + spec.name.partition(".")[2])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state  # the import system has put this loader's own there


sys.meta_path.insert(0, _Alias())
sys.modules[__name__] = elasticd
