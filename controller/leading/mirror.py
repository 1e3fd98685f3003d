"""In-memory copy of the store in a standby controller, which so need not read the store when it begins to lead. Pure.

Of what is in the archive only the keys are kept, as a controller that leads needs no more: so the copy is as large as what
unfinished jobs and servers need, however many jobs have ended. It is filled by listings, which need not be of one revision, and
followed by changes from the first listing's revision on. A change that a listing knew already is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..jobs.archive import PREFIX as ARCHIVE
from ..store.interface import Changes, Delete, Record


class Mirror:
    """Keys, values, and the revision up to which all changes are known."""

    def __init__(self, archived: Iterable[str], records: Iterable[Record], revision: int) -> None:
        """`revision`: changes after it will be taken in; at most the revision of the earliest listing."""
        self._records = {record.key: record for record in records}
        self._archived = dict.fromkeys(archived)
        self.revision = revision

    def take(self, changes: Changes) -> None:
        """Apply the changes of the next revision."""
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
