"""In-memory copy of the store in a standby, which then need not read the store when it is elected. Pure.

Of archived records the mirror keeps only the keys, as a leader needs no more. So the size of the mirror depends on the
unfinished jobs and the servers, not on the number of finished jobs.

The mirror is filled from listings, which need not be of one revision. It then applies the changes from the first
listing's revision on, and skips changes that a later listing contains already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..jobs.archive import PREFIX as ARCHIVE
from ..store.interface import Changes, Delete, Record


class Mirror:
    """Keys and values of the store, and the revision up to which all changes are applied."""

    def __init__(self, archived: Iterable[str], records: Iterable[Record], revision: int) -> None:
        """Begin with the listed keys and records, and apply changes after `revision`.

        `revision` is at most that of the earliest listing.
        """
        self._records = {record.key: record for record in records}
        self._archived = dict.fromkeys(archived)
        self.revision = revision

    def take(self, changes: Changes) -> None:
        """Apply the changes of the next revision. Revisions must come in order."""
        for write in changes.writes:
            if write.key.startswith(ARCHIVE):
                if isinstance(write, Delete):
                    self._archived.pop(write.key, None)
                else:
                    self._archived[write.key] = None
                continue
            known = self._records.get(write.key)
            if known is not None and known.mod_revision >= changes.revision:
                continue  # a later listing contains this change already
            if isinstance(write, Delete):
                self._records.pop(write.key, None)
            else:
                self._records[write.key] = Record(write.key, write.value, changes.revision)
        self.revision = max(self.revision, changes.revision)

    def records(self) -> Sequence[tuple[str, bytes]]:
        """Return all records as (key, value), each part in order of keys; archived records have empty values."""
        found = [(key, self._records[key].value) for key in sorted(self._records)]
        return [*found, *((key, b"") for key in sorted(self._archived))]

    def value(self, key: str) -> bytes | None:
        """Return the value of a key outside the archive; None if there is no record."""
        record = self._records.get(key)
        return record.value if record is not None else None
