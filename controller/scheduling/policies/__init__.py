"""Policies by name. Adding one touches its own file and the tuple below."""

from __future__ import annotations

from typing import Any

import msgspec

from ....protocol.errors import OperatorError
from .afs import AfsL, AfsP, AfsS
from .backfill import Backfill
from .base import Policy, Shares
from .elan import ElasticBackfill, ElasticFifo
from .elastic import Elastic
from .fifo import Fifo
from .gandiva import Gandiva
from .max_min import MaxMin
from .optimus import Optimus
from .remaining import Srsf, SrsfE, Srtf, SrtfE
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
    TiresiasL,
    ElasticTiresias,
    Themis,
    AfsL,
    AfsP,
    AfsS,
    Gandiva,
    YarnCs,
    Elastic,
)

__all__ = ["POLICIES", "Policy", "Shares", "load_policy"]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    policy: str
    parameters: dict[str, Any] = {}


def load_policy(document: object, source: str) -> Policy:
    """The policy that `document` (plain values: ``policy``, ``parameters``) describes. Raises OperatorError naming `source`."""
    try:
        wanted = msgspec.convert(document, _Document)
        kind = next((kind for kind in POLICIES if kind.name == wanted.policy), None)
        if kind is None:
            known = ", ".join(kind.name for kind in POLICIES)
            raise OperatorError(f"{source}: policy: there is no policy {wanted.policy!r}; known are {known}")
        return kind(msgspec.convert(wanted.parameters, kind.Parameters))  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        raise OperatorError(f"{source}: {error}") from None
