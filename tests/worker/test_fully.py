"""Jobs whose model is under `fully_shard` (FSDP2): the bits of one worker alone that has all of it."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.rehearsal.run import Rehearsed
from elasticd.worker.run import Run
from elasticd.worker.sharding.division import StateLost
from elasticd.worker.sharding.mesh import Mesh
from tests.worker.ranks import ALONE, Ranks, also

CASES = ["transformer", *also("clipped_in_bodies", "state_from_before", "summed")]
RESIZED = [[0, [0]], [3, [0, 1, 2]], [8, [1, 2]], [13, [3, 1]], [17, [1]], [20, [1, 4]]]


def expected(ranks: Ranks, case: str) -> set[str]:
    return set(ranks.outcome(f"fsdp_cases.{case}_whole", ALONE).states)


def divided(ranks: Ranks, case: str, timetable: list[Any], module: str = "fsdp_cases", **named: Any) -> set[str]:
    return set(ranks.train(f"{module}.{case}", timetable, **named).states)


@pytest.mark.parametrize("workers", [3, *also(1, 2, 4, 6)])
@pytest.mark.parametrize("case", CASES)
def test_the_number_of_workers_changes_no_bit(ranks: Ranks, case: str, workers: int) -> None:
    assert divided(ranks, case, [[0, [*range(workers)]]]) == expected(ranks, case)


@pytest.mark.parametrize("case", CASES)
def test_resizes_change_no_bit(ranks: Ranks, case: str) -> None:
    assert divided(ranks, case, RESIZED) == expected(ranks, case)


AT_EPOCHS = [[0, [0, 1]], [5, [0, 1, 2]], [6, [0, 2]], [12, [0, 2, 3]], [17, [3, 2]], [18, [3, 2, 4]], [23, [2, 5]]]


@pytest.mark.cluster
def test_resizes_at_the_ends_of_epochs_change_no_bit(ranks: Ranks) -> None:
    assert divided(ranks, "transformer", AT_EPOCHS) == expected(ranks, "transformer")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("transformer", 3), ("transformer_whole", 2)),
        *also(
            (("transformer", 2), ("transformer", 1)),
            (("transformer_whole", 2), ("transformer", 3)),
            (("state_from_before", 3), ("state_from_before", 1)),
        ),
    ],
)
def test_a_checkpoint_has_the_whole_state_whoever_reads_it(
    ranks: Ranks, tmp_path: Path, first: tuple[str, int], second: tuple[str, int]
) -> None:
    case = first[0].removesuffix("_whole")
    divided(ranks, first[0], [[0, [*range(first[1])]]], checkpoints=str(tmp_path))
    written = sorted(tmp_path.glob("*step-*.pt"))
    for path in written[4:]:
        path.unlink()
    kept = torch.load(written[3], weights_only=True)["header"]
    assert len(kept["optimizers"][0]["states"]) >= 8
    again = divided(ranks, second[0], [[0, [*range(second[1])]]], checkpoints=str(tmp_path))
    assert again == expected(ranks, case)
    assert sorted(tmp_path.glob("*step-*.pt"))[3] == written[3], "the job has begun anew"


@pytest.mark.cluster
def test_a_state_is_written_whole_by_a_worker_that_takes_over_rows_behind_the_same_step(
    ranks: Ranks, tmp_path: Path
) -> None:
    """A checkpoint is due behind each step: the leader has all rows when workers leave."""
    leaving = [[0, [0, 1, 2]], [4, [0, 1]], [9, [0]], [12, [0, 3, 4]], [15, [0, 4]]]
    assert divided(ranks, "transformer", leaving, checkpoints=str(tmp_path)) == expected(ranks, "transformer")
    kept = [int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*step-*.pt")]
    assert {3, 8, 14} & set(kept), "one of these was written by a worker that has taken over rows"


@pytest.mark.cluster
def test_joiners_call_functions_behind_their_first_step(ranks: Ranks) -> None:
    at_functions = [[0, [0]], [4, [0, 1]], [9, [1, 2, 3]], [14, [3, 4]], [19, [4, 5]]]
    assert divided(ranks, "summed", at_functions) == expected(ranks, "summed")


@pytest.mark.cluster
def test_a_worker_that_comes_when_no_step_is_left_has_the_whole_model(ranks: Ranks) -> None:
    late = [[0, [0, 1]], [24, [1, 2, 3]]]
    assert divided(ranks, "transformer", late) == expected(ranks, "transformer")


def test_rows_stay_where_they_are_if_they_cannot_be_divided_anew(ranks: Ranks) -> None:
    """The communicator breaks while the rows for a worker that joins are on their way; later behind the bodies of a
    step.
    """
    again = [[0, [0, 1]], [4, [0, 1, 2]], [4, [0, 1, 2], [], -1], [9, [2, 0]], [11, [2, 0], [], 0], [14, [0, 5]]]
    assert divided(ranks, "transformer", again) == expected(ranks, "transformer")


@pytest.mark.parametrize("workers", [3, *also(1, 2)])
def test_each_worker_has_its_rows_alone_while_bodies_run(ranks: Ranks, workers: int) -> None:
    """No layer stays gathered, and no memory of all rows is kept by the worker that had them."""
    (told,) = divided(ranks, "measured", [[0, [0]], [2, [*range(workers)]]])
    assert json.loads(told)[1] == str(workers)


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("clipped", "clip_grad_norm_.. was called in a loop body"),
        ("changed_gradient", "no worker has it there"),
        ("replaced_gradient", "no worker has it there"),
        ("changed_parameter", "a loop body changed a parameter itself"),
        ("clipped_values", "no worker has it there"),
        ("clamped_data_of_gradient", "no worker has it there"),
        ("changed_data", r"the parameter first\.weight was changed in the loop body"),
        ("hooked", "a function for the gradient of a parameter"),
        ("changed_in_forward", "a loop body changed a parameter itself"),
        ("set_factor_behind", "changed a setting of fully_shard behind prepare.. .gradient_divide_factor"),
        ("twice", "used twice in one loop body"),
        ("changed_between", "changed a parameter between two steps"),
        ("left_out", "no worker has it there"),
        ("penalised", "contains a parameter under fully_shard itself"),
        ("differentiated", r"torch\.autograd\.grad\(\), or backward\(inputs=...\), was asked"),
    ],
)
@pytest.mark.parametrize("workers", [2, *also(1)])
def test_code_whose_result_would_depend_on_the_workers_is_refused(
    ranks: Ranks, case: str, message: str, workers: int
) -> None:
    (told,) = divided(ranks, case, [[0, [*range(workers)]]])
    assert re.search(message, told), told


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("number_read", "a number was read from parameters under fully_shard in a loop body"),
        ("summed_up", "a sum over the workers' parts of parameters"),
    ],
)
def test_a_number_of_which_each_worker_has_a_part_is_not_read(ranks: Ranks, case: str, message: str) -> None:
    (told,) = divided(ranks, case, [[0, [0, 1]]])
    assert message in told


def test_bodies_that_use_layers_in_different_orders_end_the_job_on_every_worker(ranks: Ranks) -> None:
    (told,) = divided(ranks, "turned", [[0, [0, 1]]])
    assert "in different orders" in told


# ------------------------------------------------------------------------------------------------------------- refusals


class Script:
    """A script with a single worker. `options`: of `fully_shard`."""

    def __init__(self, model: nn.Module | None = None, **options: Any) -> None:
        self.run = Run(LocalControl.alone(2), None, 2, seed=1)
        self.model = model or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        fully_shard(self.model, **{"mesh": self.run.mesh(), **options})

    def prepare(self, optimizer: Any = torch.optim.SGD, data: Any = None, **options: Any) -> None:
        data = (torch.randn(16, 4), torch.randn(16, 2)) if data is None else data
        self.run.prepare(self.model, optimizer(self.model.parameters(), lr=0.1), data, 2, **options)


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.zeros(8, 4))


def scaled(script: Script) -> None:
    script.run.scaling("manual", max_factor=2)
    script.prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mesh": Mesh("cpu")}, r"another mesh than run.mesh\(\)"),
        ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, "an offload policy"),
        ({"ignored_params": ...}, "the parameter 1.bias is not under fully_shard"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_of_fully_shard_that_does_not_work_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    if "ignored_params" in options:
        options = {"ignored_params": {model[1].bias}}
    script = Script(model, **options)
    with pytest.raises(UserError, match=message):
        script.prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"before_update": lambda: None}, "fully_shard was given, and prepare.. was given before_update="),
        ({"after_update": lambda: None}, "prepare.. was given after_update="),
        ({"gathers": True}, "gathers=True"),
        ({"data": Stream()}, "read in sequence"),
        ({"optimizer": lambda own, lr: torch.optim.Adafactor(own)}, "fully_shard cannot divide the state of Adafactor"),
        ({"optimizer": partial(torch.optim.AdamW, fused=True)}, "fused=True"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_option_of_prepare_that_does_not_work_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Script().prepare(**options)


def test_other_uses_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"the parameter 0\.weight is of type torch.float16"):
        Script(nn.Sequential(nn.Linear(4, 2, dtype=torch.float16))).prepare()
    with pytest.raises(UserError, match=r"the batch may grow \(scaling\)"):
        scaled(Script())
    script = Script()
    script.prepare()
    with pytest.raises(UserError, match=r"run\.mesh\(\) was called after prepare"):
        script.run.mesh()
    for _ in script.run.epochs(1):
        steps = iter(script.run.steps())
        with pytest.raises(UserError, match="needs a loop over batches"):
            next(steps)
        break


def test_a_part_of_the_model_is_not_copied() -> None:
    script = Script()
    script.prepare()
    with pytest.raises(UserError, match="each worker has a part of it"):
        copy.deepcopy(script.model[0].weight)


def test_rows_that_are_lost_are_noticed_by_every_other_worker() -> None:
    script = Script()
    script.prepare()
    assert script.run._trainer is not None
    sharded = script.run._trainer.sharded
    assert sharded is not None
    sharded._division = sharded._division_of(["a", "b"])
    sharded.enter(["b", "a", "new"], 1, {2})
    for workers, joiners in ((["a", "c"], set()), (["a", "b"], {1}), (["b"], set())):
        with pytest.raises(StateLost, match="are lost: the job goes on from its last checkpoint"):
            sharded.enter(workers, 0, joiners)


def test_a_setting_of_fully_shard_that_changes_gradients_is_refused() -> None:
    script = Script()
    script.model.set_gradient_divide_factor(4.0)
    with pytest.raises(UserError, match="set_gradient_divide_factor"):
        script.prepare()


def test_a_function_for_the_gradient_of_a_parameter_is_refused() -> None:
    script = Script()
    script.model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(UserError, match="register_post_accumulate_grad_hook"):
        script.prepare()


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    own = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(UserError, match="a parameter that is not under fully_shard"):
        Script().prepare(lambda parameters, lr: torch.optim.SGD([*parameters, *own], lr=lr))


def test_an_averaged_model_is_refused() -> None:
    script = Script()
    average = torch.optim.swa_utils.AveragedModel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    script.prepare()
    with pytest.raises(UserError, match="an averaged model"):
        for _ in script.run.epochs(1):
            pass
    assert average is not None


def test_a_rehearsal_says_that_it_cannot_divide_parameters() -> None:
    with pytest.raises(UserError, match="elasticctl check"):
        Rehearsed.mesh(object.__new__(Rehearsed))
