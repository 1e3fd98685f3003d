"""Policies by name. A new policy is added by its own file and an entry in the tuple below."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from ..options import WrongOption, convert
from .afs import AfsL, AfsP, AfsS
from .backfill import Backfill
from .base import Policy, Shares
from .chronus import Chronus
from .edf import Edf, EdfElastic, EdfWithAdmission
from .elan import ElasticBackfill, ElasticFifo
from .elastic import Elastic
from .elasticflow import Elasticflow
from .fifo import Fifo
from .gandiva import Gandiva
from .max_min import MaxMin
from .optimus import Optimus
from .pollux import Pollux
from .srtf import Srsf, SrsfE, Srtf, SrtfE
from .themis import Themis
from .tiresias import ElasticTiresias, TiresiasL
from .yarn_cs import YarnCs

POLICIES = (
    Fifo,
    Backfill,
    ElasticFifo,
    ElasticBackfill,
    Srtf,
    Srsf,
    SrtfE,
    SrsfE,
    MaxMin,
    Optimus,
    Pollux,
    TiresiasL,
    ElasticTiresias,
    Themis,
    AfsL,
    AfsP,
    AfsS,
    Gandiva,
    YarnCs,
    Elastic,
    Elasticflow,
    Edf,
    EdfWithAdmission,
    EdfElastic,
    Chronus,
)

# Policies that give a job its requested GPUs or none: jobs under them need no measurements with other shares.
RIGID = frozenset(kind.name for kind in (Fifo, Backfill, Srtf, Srsf, TiresiasL, Gandiva, YarnCs, Chronus))

# Policies that may change any share at any time: deadlines can be promised beside them (`scheduler.deadline_guard`).
ELASTIC = frozenset(kind.name for kind in (MaxMin, Optimus, AfsL, AfsP, AfsS, Elastic))

NAMES = tuple(kind.name for kind in POLICIES)

__all__ = ["ELASTIC", "NAMES", "POLICIES", "RIGID", "Policy", "Shares", "load_policy"]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: str
    parameters: dict[str, Any] = {}


class LoadedPolicy(Policy, Protocol):
    """A policy with its parameters."""

    @property
    def parameters(self) -> msgspec.Struct:
        """The parameters in use."""
        ...


def load_policy(document: object, source: str) -> LoadedPolicy:
    """Return the policy that `document` (plain values: ``policy``, ``parameters``) describes.

    Raises OperatorError naming `source`.
    """
    wanted = convert(document, _Document, source)
    kind = next((kind for kind in POLICIES if kind.name == wanted.policy), None)
    if kind is None:
        known = ", ".join(kind.name for kind in POLICIES)
        raise WrongOption(source, "policy", f"there is no policy {wanted.policy!r}; known are {known}")
    found: LoadedPolicy = kind(convert(wanted.parameters, kind.Parameters, source, "parameters"))  # type: ignore[arg-type]
    return found
