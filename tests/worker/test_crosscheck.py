"""A newcomer that computes different results is found before its share counts, and ends."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol import exits
from elasticd.worker.comparison.crosscheck import PROVEN_LATE
from elasticd.worker.data.likeness import digest
from tests.forked import Scripts
from tests.worker.ranks import Ranks, also

JOINS_AT = 4  # step in which newcomers get the state, unless a test says otherwise
KEEPS_SOMETHING = {
    "counter": r"; global_step is \d+ on w\.0 and 0 on w\.1 \(unlike_cases\.py:\d+\); register it: run\.state\(global_step=0\)",
    "counter_beside_evaluations": r"; global_step is \d+ on w\.0 and 0 on w\.1",
    "moving_baseline": r"; baseline is [-\d.e]+ on w\.0 and 0\.0 on w\.1 \(unlike_cases\.py:\d+\)",
    "hidden_state": r"; hidden ",
    "replay": r"; buffer ",
    "teacher_of_an_epoch": r"; teacher\.teacher .*teacher = frozen\(model\) makes it .*run\.epoch_begin",
    "own_generator": r"; generator .*draw from torch's global generator",
    "host_counter": r"; done is \d+ on w\.0 and 1 on w\.1 \(unlike_cases\.py:\d+\)",
    "lbfgs_counts_later_evaluations": r"; counted is \d+ on w\.0 and 0 on w\.1",
}


def alone(train: Any, tmp_path: Path, case: str) -> str:
    """Final state of a single worker."""
    outcome = train(tmp_path / "alone", "none", workers=1, victim=0, case=case)
    assert outcome.codes == [0], outcome.told
    return outcome.states[0]


@pytest.mark.parametrize(
    ("workers", "case"),
    [
        *((2, case) for case in KEEPS_SOMETHING),
        (4, "counter"),
        *also(*((4, case) for case in KEEPS_SOMETHING if case != "counter")),
    ],
)
def test_newcomers_without_what_the_script_keeps_end_however_many_they_are(
    case: str, workers: int, tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "none", workers=workers, case=case)
    assert outcome.codes == [0, *[exits.UNLIKE] * (workers - 1)], outcome.told
    assert outcome.states == {0: alone(train, tmp_path, case)}
    assert "in the gradient of virtual worker" in outcome.told
    assert re.search(KEEPS_SOMETHING[case], outcome.told), outcome.told


@pytest.mark.parametrize(
    "case",
    [
        "keeps_nothing",
        "counts_for_a_log",
        *also(
            "switch_in_an_epoch", "says_that_it_counts", "host_that_keeps_nothing", "the_leader_estimates_in_the_body"
        ),
    ],
)
def test_workers_of_a_script_that_keeps_nothing_that_counts_are_alike(case: str, tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=3, victim=9, case=case)
    assert outcome.codes == [0, 0, 0], outcome.told
    assert outcome.states == dict.fromkeys(range(3), alone(train, tmp_path, case))
    remarked = re.findall(r"UserWarning: (\w+) is .*No gradient depends on it so far", outcome.told)
    assert remarked == (["total"] if case == "counts_for_a_log" else []), outcome.told


def test_a_newcomer_joins_though_its_dataset_has_kept_less_of_what_it_has_read(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="dataset_that_caches", joins=14)
    assert outcome.codes == [0, 0], outcome.told
    assert outcome.states == dict.fromkeys(range(2), alone(train, tmp_path, "dataset_that_caches"))
    assert "cache" not in outcome.told


def test_a_newcomer_takes_over_a_switch_of_an_earlier_epoch(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="switched_before_it_came", joins=14)
    assert outcome.codes == [0, 0], outcome.told
    assert outcome.states == dict.fromkeys(range(2), alone(train, tmp_path, "switched_before_it_came"))


def test_a_newcomer_without_an_object_that_two_variables_share_ends(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="record_with_two_names", joins=14)
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "record_with_two_names")}
    assert "; best is a dict of 1 on w.0 and None on w.1" in outcome.told, outcome.told


def test_states_that_differ_are_told_with_the_values_that_scripts_keep(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="scale_in_the_update", joins=6)
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "scale_in_the_update")}
    assert re.search(
        r"agree in parameter .*; usual cause: .* differ, too: .*scale is [\d.]+ on w\.0 and [\d.]+ on w\.1 "
        r"\(unlike_cases\.py:\d+\)",
        outcome.told,
    ), outcome.told


def test_a_newcomer_that_lacks_what_a_sampler_decides_by_ends_before_the_next_epoch(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="sampler_of_each_body_s_losses")
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert outcome.step == JOINS_AT + 1
    assert "lacks what the sampler decides by; sampler.losses " in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "sampler_of_each_body_s_losses")}


@pytest.mark.parametrize(
    ("case", "name"),
    [("loss_from_a_step_on", "global_step"), ("memory_from_an_epoch_on", "queue"), ("pool_of_earlier_samples", "pool")],
)
def test_a_newcomer_that_lacks_what_acts_at_any_later_step_ends_before_it_hosts(
    case: str, name: str, tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case=case)
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert outcome.step == JOINS_AT + 1
    assert f"lacks what the loss is computed from, now or in a later step; {name} " in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, case)}


def test_a_newcomer_joins_though_a_cache_and_scratch_memory_of_the_loss_differ(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="cache_and_scratch_memory")
    assert outcome.codes == [0, 0], outcome.told
    assert outcome.states == dict.fromkeys(range(2), alone(train, tmp_path, "cache_and_scratch_memory"))


def test_workers_whose_bodies_change_the_data_in_different_ways_end_before_the_next_epoch(
    tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="changes_the_dataset_later")
    assert outcome.codes == [exits.DISAGREED, exits.DISAGREED], outcome.told
    assert re.search(
        r"w\.1 on \S+ differs from w\.0 on \S+ in what the loop has changed in the dataset; data\.weights is .* on w\.0 and "
        r".* on w\.1 \(unlike_cases\.py:\d+\); .*set_epoch\(epoch\)",
        outcome.told,
    ), outcome.told


def test_workers_that_have_trained_with_different_values_of_the_loss_end_before_the_second_step_that_uses_them(
    tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="baseline_in_some_steps", joins=2)
    assert outcome.codes == [exits.DISAGREED, exits.DISAGREED], outcome.told
    assert re.search(
        r"w\.1 on \S+ differs from the workers that have the state in the gradient .*; mean is [\d.]+ on w\.0 and [\d.]+ on "
        r"w\.1 \(unlike_cases\.py:\d+\)",
        outcome.told,
    ), outcome.told
    step = re.search(r"step (\d+): w\.1", outcome.told)
    assert step is not None
    assert int(step[1]) <= 9, "the values were made in step 4 and used in step 9"


@pytest.mark.parametrize(
    ("case", "name", "latest"),
    [
        ("counter_that_a_body_sets_back", r"warm_up\.taken is \d+ on w\.0 and \d+", 13),
        ("anchor_from_some_batches", r"anchor\.point is .* on w\.0 and .*", 15),
        ("points_from_some_batches", r"anchor\.points.* on w\.0 and .*", 15),
    ],
)
def test_a_value_that_a_body_of_one_worker_changes_for_later_ones_is_found_soon(
    case: str, name: str, latest: int, tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case=case, joins=2)
    assert outcome.codes == [exits.DISAGREED, exits.DISAGREED], outcome.told
    assert re.search(name, outcome.told), outcome.told
    step = re.search(r"step (\d+): w\.1", outcome.told)
    assert step is not None
    assert int(step[1]) <= latest


def test_what_bodies_add_up_for_later_losses_is_named_when_several_workers_train(tmp_path: Path, train: Any) -> None:
    alone = train(tmp_path / "one", "none", workers=1, case="flag_from_correct_answers")
    assert "loop bodies leave" not in alone.told
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="flag_from_correct_answers")
    assert len(re.findall(r"loop bodies leave correct \(unlike_cases\.py:\d+\) to later ones", outcome.told)) == 2


def test_what_a_function_of_an_evaluation_changes_is_named_at_once(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "one", "none", workers=1, case="counts_in_the_evaluation")
    (told,) = re.findall(r"UserWarning: the function given to run\.evaluate\(\) changes (.*?)\. Each", outcome.told)
    assert re.fullmatch(r"(score\.)?correct \(unlike_cases\.py:\d+\)", told), told


def test_a_newcomer_ends_before_it_hosts_if_bodies_change_a_registered_value(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="registered_baseline")
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "registered_baseline")}
    assert (
        re.search(
            r"w\.1.* cannot take part; loop bodies change baseline\.mean \(unlike_cases\.py:\d+\) of a registered value",
            outcome.told,
        )
        or "the registered value 'baseline' has been changed" in outcome.told
    ), outcome.told


def test_a_registered_value_that_bodies_change_unseen_is_named(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="hidden_registered_baseline")
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert re.search(
        r"the registered value 'baseline' has been changed by loop bodies, of which each worker runs only some: "
        r"baseline\['mean'\] is [-\d.e]+ on w\.0 and [-\d.e]+ on w\.1\. Keep .* run\.state",
        outcome.told,
    ), outcome.told


def test_a_value_that_is_saved_is_named_soon_after_it_begins_to_change(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="averages_from_an_epoch_on")
    assert re.search(
        r"UserWarning: count is \d+ on w\.0 and \d+ on w\.1 \(unlike_cases\.py:\d+\).*Both have trained from the same state",
        outcome.told,
    ), outcome.told
    first = re.search(r"count is (\d+) on w\.0 and (\d+) on w\.1", outcome.told)
    assert first is not None
    assert max(map(int, first.groups())) <= 16, "named more than four steps late"


def test_a_dataset_s_cache_that_the_loop_fills_is_no_difference(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, victim=9, case="fills_a_cache_of_the_dataset")
    assert outcome.codes == [0, 0], outcome.told
    assert outcome.states == dict.fromkeys(range(2), alone(train, tmp_path, "fills_a_cache_of_the_dataset"))


@pytest.mark.cluster
def test_a_value_that_acts_some_steps_later_is_found_while_newcomers_host_nothing(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=3, case="pool_filled_by_another_name", extends_proofs=True)
    assert outcome.codes == [0, exits.UNLIKE, exits.UNLIKE], outcome.told
    assert JOINS_AT + 1 < outcome.step < JOINS_AT + PROVEN_LATE
    assert "; pool " in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "pool_filled_by_another_name")}


def test_a_newcomer_whose_sampler_gives_another_order_ends(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="sampler_of_own_losses", joins=14)
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert "their samplers have given different orders" in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "sampler_of_own_losses")}


def test_a_newcomer_that_derives_something_else_at_an_epochs_beginning_ends_though_its_gradient_is_the_same(
    tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="labels_of_an_epoch")
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert re.search(
        r"joined in the middle of an epoch, at whose beginning labels\.values .* run\.epoch_begin\(", outcome.told
    ), outcome.told
    assert "shares" not in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "labels_of_an_epoch")}


def test_a_newcomer_whose_loop_bodies_set_other_hyperparameters_ends_alone(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=3, case="rate_from_a_counter")
    assert outcome.codes == [0, exits.UNLIKE, exits.UNLIKE], outcome.told
    assert "which had just joined: the optimizer's param_groups[0]['lr'] is " in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "rate_from_a_counter")}


def test_a_newcomer_with_too_few_bodies_for_what_follows_the_epoch_ends(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=2, case="mean_of_an_epochs_bodies")
    assert outcome.codes == [0, exits.UNLIKE], outcome.told
    assert "ZeroDivisionError: float division by zero: it has run few loop bodies of the epoch" in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "mean_of_an_epochs_bodies")}


def test_a_newcomer_with_other_data_ends_and_is_told_so(tmp_path: Path, train: Any) -> None:
    outcome = train(tmp_path / "all", "none", workers=3, case="data_that_differ")
    assert outcome.codes == [0, exits.UNLIKE, exits.UNLIKE], outcome.told
    assert "of the dataset differs between w.0 on 127.0.0.1 and w." in outcome.told
    assert outcome.states == {0: alone(train, tmp_path, "keeps_nothing")}


@pytest.mark.cluster
def test_bodies_that_run_once_more_after_a_loss_are_told_with_the_names_that_they_change(
    tmp_path: Path, train: Any
) -> None:
    outcome = train(tmp_path / "all", "parameter", workers=3, victim=1)  # ends in the middle of step 9
    assert "for nothing" not in outcome.told
    outcome = train(tmp_path / "counts", "none", workers=3, victim=1, case="counts_for_a_log", loses=9)
    assert re.search(
        r"loop bodies of step 9 have run for nothing before: total \(unlike_cases\.py:\d+\) has", outcome.told
    )
    assert outcome.states[0] == alone(train, tmp_path, "counts_for_a_log")


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("case", "workers", "said", "unsaid"),
    [
        # the counter of the only worker is carried
        pytest.param("teacher_and_counter", [0], r"teacher .*run\.epoch_begin\(", "seen", id="one worker"),
        pytest.param(
            "counts_for_a_log",
            [0, 1],
            r"has kept in total \(unlike_cases\.py:\d+\)\. .* nothing that is trained",
            "register it",
            id="two workers",
        ),
    ],
)
def test_a_job_that_goes_on_from_a_checkpoint_is_told_what_its_script_has_lost(
    tmp_path: Path, capfd: Any, case: str, workers: list[int], said: str, unsaid: str
) -> None:
    with (
        contextlib.closing(Scripts()) as scripts,
        contextlib.closing(Ranks(scripts)) as ranks,
    ):  # print where `capfd` reads
        ranks.train(f"unlike_cases.{case}", [[0, workers]], checkpoints=str(tmp_path))
        for path in tmp_path.glob(
            "*step-*.pt"
        ):  # the job is at the ninth step again, in the middle of its second epoch
            if int(path.stem.rpartition("-")[2]) > 8:
                path.unlink()
        capfd.readouterr()
        ranks.train(f"unlike_cases.{case}", [[0, [0]]], checkpoints=str(tmp_path))
    told = capfd.readouterr().err
    assert re.search(said, told), told
    assert unsaid not in told


def test_batches_are_told_apart_by_their_contents() -> None:
    batch = {"x": torch.arange(6.0), "names": ["a", "b"], "n": 3}
    assert digest(batch) == digest({"x": torch.arange(6.0), "names": ["a", "b"], "n": 3})
    others = [
        {**batch, "x": torch.arange(6.0).view(2, 3)},
        {**batch, "x": torch.arange(1.0, 7.0)},
        {**batch, "names": ["a", "c"]},
        {**batch, "n": 3.0},
        (batch["x"], ["a", "b"], 3),
    ]
    assert len({digest(batch), *map(digest, others)}) == 6
