"""The example jobs: their data exist and are deterministic, and the scripts train alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from examples.charlm import train as charlm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def digits() -> Any:
    """Not imported while tests are collected, as scikit-learn takes seconds."""
    return importlib.import_module("examples.digits.train")


def test_digits_are_split_the_same_way_each_time_and_no_image_is_in_both_parts(digits: Any) -> None:
    (train, labels), (test, test_labels) = digits.load_split()
    again = digits.load_split()[0][0]
    assert torch.equal(train, again)
    assert (len(train), len(labels)) == (1437, 1437)
    assert (len(test), len(test_labels)) == (360, 360)
    assert float(train.max()) <= 1.0


def test_a_shift_moves_an_image_by_at_most_one_pixel(digits: Any) -> None:
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 4, 4] = 1.0
    dataset = digits.ShiftedDigits(image, torch.tensor([0]))
    torch.manual_seed(0)
    places = {tuple(dataset[0][0].nonzero()[0, 1:].tolist()) for _ in range(200)}
    assert places == {(row, column) for row in (3, 4, 5) for column in (3, 4, 5)}


def test_the_text_is_the_same_each_time_and_validation_paragraphs_are_not_trained_on() -> None:
    train, held_out = charlm.load_text()
    assert (train, held_out) == charlm.load_text()
    assert len(train) > 100_000
    assert not set(held_out.split("\n\n")) & set(train.split("\n\n"))


def test_characters_outside_the_alphabet_count_as_spaces() -> None:
    assert charlm.encode("aß\n").tolist() == [charlm.ALPHABET.index(c) for c in "a \n"]


def test_a_window_is_followed_by_itself_one_character_later_and_lies_within_the_text() -> None:
    text = torch.arange(1000)
    for jitter in (False, True):
        windows = charlm.Windows(text, stride=128, jitter=jitter)
        for index in range(len(windows)):
            x, y = windows[index]
            assert x.shape == (charlm.CONTEXT,)
            assert torch.equal(x + 1, y)


def test_the_transformer_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = charlm.Transformer(width=16, heads=2, depth=1).eval()
    text = torch.randint(0, len(charlm.ALPHABET), (1, charlm.CONTEXT))
    other = text.clone()
    other[0, 40:] = 0
    assert torch.allclose(model(text)[0, :40], model(other)[0, :40], atol=1e-5)


def test_the_learning_rate_warms_up_and_then_falls_to_its_floor() -> None:
    factor = charlm.warm_up(100, 10, floor=0.1)
    rates = [factor(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_the_table_is_scaled_by_its_training_part_alone() -> None:
    tabular = importlib.import_module("examples.tabular.train")
    (train, _), (test, _) = tabular.load_split()
    assert torch.allclose(train.mean(dim=0), torch.zeros(30), atol=1e-4)
    assert len(train) + len(test) == 569


@pytest.mark.parametrize("name", ["digits", "charlm", "tabular"])
def test_each_job_file_names_a_script_that_is_there(name: str) -> None:
    job = yaml.safe_load((ROOT / "examples" / name / "job.yaml").read_text())
    assert job["name"] == name
    assert (ROOT / job["command"].split()[1]).is_file()
    assert job["virtual_workers"] >= job["gpus"]["max"]


def test_digits_are_learned_alone_too(digits: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "ELASTIC_VIRTUAL_WORKERS": "4"}
    command = [sys.executable, "examples/digits/train.py", "--epochs", "4", "--output", str(tmp_path / "digits.pt")]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1].startswith("epoch 4: test accuracy")
    model = digits.make_model()
    model.load_state_dict(torch.load(tmp_path / "digits.pt", weights_only=True))
    assert digits.accuracy(model, *digits.load_split()[1]) > 0.9
