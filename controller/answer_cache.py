"""Answers to requests that changed something: a repeated request gets the same answer, and has no effect again.

All principals share one bound. When it is reached, one principal's oldest answer is forgotten: that of the present
requester, if this principal has more than an equal share of the answers, else that of the principal with the most. So a
principal with less than an equal share loses no answer to the requests of others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ..protocol.messages import Answer

KEPT_ANSWERS = 10_000


class AnswerCache:
    """Answers by the names of their requests (`ClientRequest.name`)."""

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
        """Remember an answer. Returns the requests and answers that are forgotten for it."""
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
    """Return the principal in a request's name "ROLE:NAME|ID"; "" for the local operator, who has no name there."""
    who, taint, _ = request.partition("|")
    return who if taint else ""
