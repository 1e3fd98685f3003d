"""Every kind of message is generated, corrupted, and either decoded or refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticd.controller.daemon import _readable_id
from elasticd.protocol.codec import Codec
from elasticd.protocol.errors import PeerError
from elasticd.protocol.messages import (
    Envelope,
    Reply,
    Request,
    ToAgentFromController,
    ToAgentFromWorker,
    ToControllerFromAgent,
    ToFollower,
    ToLeader,
    ToWorkerFromAgent,
)
from verification.fuzz.grammar import Grammar, Words, encode, kinds
from verification.fuzz.mutate import Mutator

LINKS: dict[str, Any] = {
    "client": Envelope,
    "answer": Reply,
    "to controller": ToControllerFromAgent,
    "to agent": ToAgentFromController,
    "from worker": ToAgentFromWorker,
    "to worker": ToWorkerFromAgent,
    "to leader": ToLeader,
    "to follower": ToFollower,
}


@pytest.mark.parametrize("link", LINKS)
def test_what_is_made_of_the_types_is_a_message(link: str) -> None:
    rng = random.Random(link)
    grammar, codec = Grammar(rng), Codec(LINKS[link])
    found = set()
    for _ in range(600):
        try:
            found.add(type(codec.decode(encode(grammar.message(LINKS[link])))).__name__)
        except PeerError:
            pass  # a number that this field cannot hold
    assert found == set(kinds(LINKS[link]))


def test_every_request_is_made() -> None:
    rng = random.Random(1)
    grammar = Grammar(rng)
    made = {grammar.message(Envelope)["request"]["type"] for _ in range(1000)}
    assert made == set(kinds(Request))


@pytest.mark.parametrize("link", LINKS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_spoiled_bytes_are_a_message_or_refused(link: str, seed: int) -> None:
    rng = random.Random(seed)
    grammar, codec = Grammar(rng), Codec(LINKS[link])
    mutator = Mutator(rng, grammar)
    for _ in range(20):
        data = mutator.payload(grammar.message(LINKS[link]))
        for each in (data, mutator.data(data), mutator.deep()):
            try:
                codec.encode(codec.decode(each))
            except PeerError:
                assert _readable_id(each) is None or len(str(_readable_id(each))) <= 256


@settings(max_examples=300)
@given(st.binary(max_size=200), st.sampled_from(sorted(LINKS)))
def test_any_bytes_are_a_message_or_refused(data: bytes, link: str) -> None:
    try:
        Codec(LINKS[link]).decode(data)
    except PeerError:
        pass


def test_the_same_seed_spoils_in_the_same_way() -> None:
    def some(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        grammar = Grammar(rng, Words({"job": ["digits-1"]}))
        mutator = Mutator(rng, grammar)
        return [mutator.payload(grammar.message(ToControllerFromAgent)) for _ in range(200)]

    assert some(1) == some(1)
    assert some(1) != some(2)
