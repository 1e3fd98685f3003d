"""Distributed evaluation: its result does not depend on the division of work, and it leaves no trace in the training."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from elasticd.protocol.errors import UserError
from elasticd.worker.evaluation import Evaluation
from elasticd.worker.hosting import assign

N = 4
DATA = TensorDataset(torch.randn(61, 6, generator=torch.Generator().manual_seed(1)), torch.arange(61) % 3)


def network() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


MODEL = network()


def score(batch: Sequence[torch.Tensor]) -> dict[str, Any]:
    inputs, labels = batch
    scores = MODEL(inputs)
    loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
    return {
        "loss": loss,
        "right": (scores.argmax(1) == labels).sum(),
        "noise": torch.rand(()),
        "rounded": scores.double().exp().sum(0) / 3,  # sums of these depend on their order
        "sizes": [len(labels), 1.5],
    }


def evaluation(function: Callable[[Any], Any] = score, dataset: Any = DATA, n: int = N, **options: Any) -> Evaluation:
    options.setdefault("batch_size", 4)
    return Evaluation(
        function, dataset, options.pop("batch_size"), n, (7, "evaluate", 3), torch.device("cpu"), [MODEL], **options
    )


def divided(whole: Evaluation, workers: int) -> bytes:
    parts: dict[int, bytes] = {}
    for hosted in reversed(assign(N, [True] * workers)):
        parts.update(whole.parts(hosted, lambda: None))
    return whole.result(parts)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [4, 32, 100])  # of three batches and of one, some virtual workers have none
def test_the_numbers_are_the_same_for_every_number_of_workers(workers: int, batch_size: int) -> None:
    alone = evaluation(batch_size=batch_size)
    assert divided(evaluation(batch_size=batch_size), workers) == alone.result(alone.parts(range(N), lambda: None))


def test_it_is_the_sum_over_all_samples() -> None:
    whole = evaluation()
    found = whole.take(divided(whole, 3))
    MODEL.eval()
    with torch.no_grad():
        scores = MODEL(DATA.tensors[0])
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(scores, DATA.tensors[1], reduction="sum").item())
    assert found["right"] == int((scores.argmax(1) == DATA.tensors[1]).sum())
    assert found["sizes"] == [61, 16 * 1.5]


def test_processes_that_read_ahead_change_nothing() -> None:
    assert divided(evaluation(num_workers=2), 2) == divided(evaluation(), 1)


def test_a_data_loader_says_how_its_samples_are_read() -> None:
    loader = DataLoader(DATA, batch_size=4, num_workers=0)
    assert divided(evaluation(dataset=loader, batch_size=None), 2) == divided(evaluation(), 1)


def test_nothing_is_left_of_it() -> None:
    model = MODEL
    model.train()
    model[1].eval()  # frozen statistics stay frozen
    model[1].register_buffer("count", torch.zeros(()), persistent=False)
    before = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist()

    def careless(batch: Any) -> int:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        model[1].count.add_(1)
        random.random(), numpy.random.rand(), torch.rand(1)
        return len(batch[0])

    whole = evaluation(careless)
    assert whole.take(divided(whole, 2)) == 61
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    assert float(model[1].count) == 0
    after = random.getstate(), torch.get_rng_state(), numpy.random.get_state()[1].tolist()
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dataset": Stream()}, "an IterableDataset has none"),
        ({"dataset": []}, "an empty dataset"),
        ({"batch_size": None}, "batch_size is None"),
        ({"metrics": 3}, "metrics of torchmetrics"),
        ({"dataset": DataLoader(DATA, batch_size=4, drop_last=True)}, "with drop_last=True"),
        ({"dataset": DataLoader(DATA, batch_size=None)}, "without batch_size="),
    ],
)
def test_what_cannot_be_evaluated_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        evaluation(**options)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda batch: batch[0][:, 0] * 1.0, "values of different forms"),
        (lambda batch: "good", "returned a str"),
        (lambda batch: {"a": 1} if len(batch[0]) == 4 else {"b": 1}, "values of different forms"),
    ],
    ids=["one for each sample", "text", "other keys"],
)
def test_what_cannot_be_added_up_is_refused(function: Callable[[Any], Any], told: str) -> None:
    whole = evaluation(function)
    with pytest.raises(UserError, match=told):
        divided(whole, 2)


def test_metrics_of_torchmetrics_have_the_state_of_all_batches() -> None:
    metrics = pytest.importorskip("torchmetrics")
    found = {}
    for workers in (1, 2, 3):
        kinds = {
            "sums": metrics.classification.MulticlassAccuracy(num_classes=3),
            "lists": metrics.classification.MulticlassAUROC(num_classes=3),
            "moments": metrics.PearsonCorrCoef(),
        }

        def update(batch: Sequence[torch.Tensor], kinds: dict[str, Any] = kinds) -> None:
            scores = MODEL(batch[0]).softmax(1)
            for name in ("sums", "lists"):
                kinds[name].update(scores, batch[1])
            kinds["moments"].update(scores[:, 0], batch[1].float())

        whole = evaluation(update, metrics=kinds)
        assert whole.take(divided(whole, workers)) is None
        found[workers] = {name: float(metric.compute()) for name, metric in kinds.items()}
    assert found[1] == found[2] == found[3]
    MODEL.eval()
    with torch.no_grad():
        scores = MODEL(DATA.tensors[0]).softmax(1)
    assert found[1]["sums"] == pytest.approx(
        float(metrics.functional.classification.multiclass_accuracy(scores, DATA.tensors[1], num_classes=3))
    )
    assert found[1]["lists"] == float(
        metrics.functional.classification.multiclass_auroc(scores, DATA.tensors[1], num_classes=3)
    )


def test_a_sampler_of_its_own_is_refused() -> None:
    sampler = WeightedRandomSampler([1.0] * len(DATA), len(DATA))
    with pytest.raises(UserError, match="sampler"):
        evaluation(dataset=DataLoader(DATA, batch_size=4, sampler=sampler), batch_size=None)
