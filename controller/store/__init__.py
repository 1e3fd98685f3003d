"""Where the controller keeps what must survive it."""

from .interface import Delete, If, Listing, Put, Record, Store, StoreUnavailable
from .sqlite import SqliteStore

__all__ = ["Delete", "If", "Listing", "Put", "Record", "SqliteStore", "Store", "StoreUnavailable"]
