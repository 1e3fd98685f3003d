"""In-band messages of workers within a step: all learn the maxima, and all payloads as soon as any worker wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import UserError
from elasticd.worker.communication.communicator import Communicator
from elasticd.worker.inband import NOTHING, InBand, Part, exchange

from .communicator_world import run_ranks


class Voter:
    """Votes a number in each step, sends a payload where the numbers differ, and another one if it wants to."""

    def __init__(self, name: str, number: int, wants: bool = False) -> None:
        self.name, self.number, self.wanted = name, number, wants
        self.slots = 2
        self.heard: list[list[Any]] = []

    def numbers(self, part: Part) -> Sequence[int]:
        return (NOTHING, NOTHING) if part.joins else (self.number, -self.number)

    def wants(self, part: Part) -> bool:
        return self.wanted

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        return greatest[0] != -greatest[1]

    def payload(self, part: Part) -> Any:
        return {"number": self.number, "hosted": list(part.hosted), "text": "x" * self.number}

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        self.heard.append(list(payloads))


def step(communicator: Communicator, voters: list[Voter], joins: bool = False, proposal: int = 0) -> int:
    in_band = InBand()
    for voter in voters:
        in_band.add(voter)
    part = Part(7, () if joins else (communicator.rank,), joins)
    in_band.issue(communicator, part, proposal)
    found = in_band.complete(communicator, part)
    in_band.read(part)
    return found


@pytest.mark.parametrize("size", [1, 3])
def test_where_nobody_has_anything_to_tell_there_are_no_letters(size: int) -> None:
    def run(communicator: Communicator) -> tuple[int, list[list[Any]]]:
        voter = Voter("v", 5)
        return step(communicator, [voter], proposal=communicator.rank), voter.heard

    found = [run(Communicator.alone())] if size == 1 else run_ranks(size, run)
    assert found == [(size - 1, [])] * size


def test_numbers_that_differ_have_everybody_write_a_letter_and_everybody_reads_all_of_them() -> None:
    def run(communicator: Communicator) -> list[list[Any]]:
        same, other = Voter("same", 1), Voter("other", 10 * communicator.rank)
        step(communicator, [same, other])
        return [same.heard, other.heard]

    for same, other in run_ranks(3, run):
        assert [payload["number"] for payload in same[0]] == [1, 1, 1]
        assert other == [[{"number": 10 * r, "hosted": [r], "text": "x" * 10 * r} for r in range(3)]]


def test_one_worker_that_wants_a_letter_is_enough() -> None:
    def run(communicator: Communicator) -> list[list[Any]]:
        voter = Voter("v", 4, wants=communicator.rank == 2)
        step(communicator, [voter])
        return voter.heard

    for heard in run_ranks(3, run):
        assert [payload["hosted"] for payload in heard[0]] == [[0], [1], [2]]


def test_a_joiner_contributes_nothing_to_a_number() -> None:
    def run(communicator: Communicator) -> list[list[Any]]:
        joins = communicator.rank == 1
        voter = Voter("v", 99 if joins else 4)
        step(communicator, [voter], joins=joins)
        return voter.heard

    assert run_ranks(2, run) == [[], []]


def test_letters_of_a_worker_alone_come_back() -> None:
    voter = Voter("v", 4, wants=True)
    step(Communicator.alone(), [voter])
    assert voter.heard == [[{"number": 4, "hosted": [0], "text": "xxxx"}]]


class Comparer(Voter):
    """A voter with numbers that only compare the workers."""

    compares = True
    asked = 0

    def numbers(self, part: Part) -> Sequence[int]:
        self.asked += 1
        return super().numbers(part)


def test_a_worker_alone_is_asked_for_numbers_that_are_no_mere_comparison() -> None:
    in_band, voter, comparer = InBand(), Voter("voter", 3), Comparer("comparer", 4)
    for each in (comparer, voter):
        in_band.add(each)
    for alone, asked in ((True, 0), (False, 1), (True, 1)):
        in_band.enter(alone)
        in_band.issue(Communicator.alone(), Part(7, (0,)), 0)
        assert in_band._greatest[2:] == ([3, -3] if alone else [4, -4, 3, -3])
        assert in_band.complete(Communicator.alone(), Part(7, (0,))) == 0
        assert comparer.asked == asked


def test_what_is_not_plain_is_refused_where_it_is_written() -> None:
    def run(communicator: Communicator) -> str:
        if communicator.rank == 1:
            communicator.abort()
            return ""
        with pytest.raises(UserError, match="tensor") as caught:
            exchange(communicator, {"v": torch.zeros(1)})
        return str(caught.value)

    assert "a payload" in run_ranks(2, run)[0]
