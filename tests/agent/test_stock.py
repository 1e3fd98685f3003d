"""Which warm processes an agent keeps."""

from __future__ import annotations

import random

from elasticd.agent.forkserver.pool import IDLE_S, IN_USE_S, LOADING_S, LONGEST_PAUSE_S, MAX_WARM, End, Make, Stock
from elasticd.agent.warm_key import WarmKey

STANDARD = WarmKey("/venv/bin", "/usr/bin/python3", ())


def other(number: int) -> WarmKey:
    return WarmKey("/venv/bin", "/usr/bin/python3", (("OMP_NUM_THREADS", str(number)),))


def ready_stock(*keys: WarmKey) -> Stock:
    stock = Stock(STANDARD)
    assert stock.due(0.0) == [Make(STANDARD)]
    stock.ready(0.0, STANDARD)
    for key in keys:
        assert stock.want(0.0, key) == (False, [Make(key)])
        stock.ready(0.0, key)
    return stock


def test_the_standard_process_is_made_at_once_and_never_ends_for_want_of_work() -> None:
    stock = Stock(STANDARD)
    assert stock.next_deadline() == 0.0
    assert stock.due(0.0) == [Make(STANDARD)]
    assert stock.want(1.0, STANDARD) == (False, [])
    stock.ready(2.0, STANDARD)
    assert stock.want(3.0, STANDARD) == (True, [])
    assert stock.due(1e6) == []
    assert stock.next_deadline() is None


def test_another_is_made_when_a_worker_could_have_used_it_and_ends_when_none_has_for_long() -> None:
    stock = ready_stock(other(1))
    assert stock.want(100.0, other(1)) == (True, [])
    assert stock.next_deadline() == 100.0 + IDLE_S
    assert stock.due(99.0 + IDLE_S) == []
    assert stock.due(100.0 + IDLE_S) == [End(other(1))]
    assert stock.want(101.0 + IDLE_S, other(1)) == (False, [Make(other(1))])


def test_one_that_ends_by_itself_is_made_again_after_a_pause_that_doubles() -> None:
    stock, now, pauses = ready_stock(), 10.0, []
    for _ in range(12):
        stock.ended(now, STANDARD)
        assert stock.want(now, STANDARD) == (False, [])
        deadline = stock.next_deadline()
        assert deadline is not None
        pauses.append(deadline - now)
        now = deadline
        assert stock.due(now) == [Make(STANDARD)]
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == LONGEST_PAUSE_S
    stock.ready(now, STANDARD)
    stock.ended(now + 2 * LONGEST_PAUSE_S, STANDARD)  # it worked for long: the count restarts
    assert stock.next_deadline() == now + 2 * LONGEST_PAUSE_S + 1.0


def test_one_that_says_it_is_of_no_use_is_not_made_again() -> None:
    stock = ready_stock()
    assert stock.want(0.0, other(1)) == (False, [Make(other(1))])
    stock.useless(1.0, other(1))
    stock.ended(2.0, other(1))
    assert stock.want(1e6, other(1)) == (False, [])


def test_one_that_never_finishes_loading_is_given_up() -> None:
    stock = Stock(STANDARD)
    stock.due(0.0)
    assert stock.next_deadline() == LOADING_S
    assert stock.due(LOADING_S) == [End(STANDARD)]
    assert stock.due(LOADING_S + 1.0) == [Make(STANDARD)]


def test_one_whose_packages_have_changed_is_replaced() -> None:
    stock = ready_stock(other(1))
    assert stock.outdated(5.0, other(1)) == [End(other(1)), Make(other(1))]
    assert stock.want(6.0, other(1)) == (False, [])


def test_where_there_are_too_many_the_one_unused_for_longest_makes_room_unless_it_was_used_just_now() -> None:
    stock = ready_stock(*(other(number) for number in range(MAX_WARM - 1)))
    for number in range(1, MAX_WARM - 1):
        stock.want(1.0, other(number))
    assert stock.want(2.0, other(99)) == (False, [])
    assert stock.want(IN_USE_S, other(99)) == (False, [End(other(0)), Make(other(99))])


def test_there_are_never_more_than_the_limit_whatever_happens() -> None:
    for seed in range(20):
        rng, stock, alive, now = random.Random(seed), Stock(STANDARD), set[WarmKey](), 0.0
        for _ in range(400):
            now += rng.expovariate(0.1)
            key = rng.choice([STANDARD, *(other(number) for number in range(300))])
            asked = stock.due(now) if rng.random() < 0.3 else stock.want(now, key)[1]
            for action in asked:
                (alive.add if isinstance(action, Make) else alive.remove)(action.key)
            for key in sorted(alive, key=str):
                match rng.randrange(8):
                    case 0 | 1:
                        stock.ready(now, key)
                    case 2:
                        stock.ended(now, key)
                        alive.remove(key)
                    case 3 if rng.random() < 0.2:
                        stock.useless(now, key)
                        alive.remove(key)
            assert len(alive) <= MAX_WARM, f"seed {seed}"
