"""A rank that follows changes of the leader, for frameworks that store a rank once."""

from __future__ import annotations

from typing import Any

import elasticd as elastic


class LiveRank(int):
    """0 as long as this worker is the job's leader, else 1: every comparison sees the present leader."""

    _run: elastic.Run

    def __new__(cls, run: elastic.Run) -> LiveRank:
        rank = super().__new__(cls, 0)
        rank._run = run
        return rank

    def __index__(self) -> int:
        return 0 if self._run.leads else 1

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return self.__index__() == other

    def __ne__(self, other: object) -> bool:
        return self.__index__() != other

    def __gt__(self, other: Any) -> bool:
        return self.__index__() > other

    def __bool__(self) -> bool:
        return self.__index__() != 0

    def __hash__(self) -> int:
        return hash(id(self))

    def __repr__(self) -> str:
        return str(self.__index__())
