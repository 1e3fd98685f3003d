"""Durable stores of the controller's state: SQLite for a single controller, etcd for several."""

from .interface import (
    Changes,
    Compacted,
    Delete,
    Deposed,
    If,
    Lease,
    Limits,
    Listing,
    Put,
    PutLeased,
    Record,
    SharedStore,
    Store,
    StoreUnavailable,
    Watch,
)
from .sqlite import SqliteStore

__all__ = [
    "Changes",
    "Compacted",
    "Delete",
    "Deposed",
    "If",
    "Lease",
    "Limits",
    "Listing",
    "Put",
    "PutLeased",
    "Record",
    "SharedStore",
    "SqliteStore",
    "Store",
    "StoreUnavailable",
    "Watch",
]
