"""Answers to requests that changed something: whoever repeats such a request gets the same answer, and nothing is done twice.

All principals share one bound. When it is reached, somebody's oldest answer is forgotten: that of the newcomer, if he has more
than an equal share of what is kept, else that of whoever has most. So nobody who has less than an equal share loses an answer
to what others ask for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ..protocol.messages import Answer

KEPT_ANSWERS = 10_000


class RememberedAnswers:
    """By the names of their requests (`ClientRequest.name`)."""

    def __init__(self) -> None:
        self._of: dict[str, OrderedDict[str, Answer]] = {}  # by principal; the oldest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, request: str) -> Answer | None:
        answers = self._of.get(_principal(request))
        return None if answers is None else answers.get(request)

    def items(self) -> Iterator[tuple[str, Answer]]:
        return (known for answers in self._of.values() for known in answers.items())

    def put(self, request: str, answer: Answer) -> list[tuple[str, Answer]]:
        """Remember one more. Returns what is forgotten for it."""
        who = _principal(request)
        own = self._of.setdefault(who, OrderedDict())
        self._count += request not in own
        own[request] = answer
        gone = []
        while self._count > KEPT_ANSWERS:
            most = who if len(own) * len(self._of) > self._count else max(self._of, key=lambda one: len(self._of[one]))
            gone.append(self._of[most].popitem(last=False))
            self._count -= 1
            if not self._of[most]:
                del self._of[most]
        return gone


def _principal(request: str) -> str:
    """Who has asked: "ROLE:NAME|ID". Whoever runs a cluster of one machine has no name in it."""
    who, bar, _ = request.partition("|")
    return who if bar else ""
