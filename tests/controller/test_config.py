"""The controller's configuration of measurements and profiles."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from elasticd.controller import config
from elasticd.protocol.errors import OperatorError
from elasticd.scheduler.measuring import Measuring

TABLE = "model,batch_size,gpus,iters_per_s\nBERT,16,1,10\nBERT,16,2,19\nBERT,32,1,6\nbert,64,1,3\n"


def written(directory: Path, text: str) -> Path:
    file = directory / "controller.yaml"
    file.write_text(text)
    return file


def test_how_jobs_are_measured_is_configured(tmp_path: Path) -> None:
    assert config.load(written(tmp_path, "")).how_to_measure == Measuring()
    loaded = config.load(written(tmp_path, "measuring: {way_down: false, steps: 10, longest_s: 5, most_of_rest: 0.5}"))
    assert loaded.how_to_measure == Measuring(way_down=False, steps=10, longest_s=5.0, most_of_rest=0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("measuring: {steps: 2}", "measuring.steps"),
        ("measuring: {most_of_rest: 2}", "measuring.most_of_rest"),
        ("measuring: {longest_s: 0}", "measuring.longest_s"),
        ("measuring: {stesp: 20}", "stesp"),
        ("profiles: table.csv", "profiles"),
        ("idle: warn 10", "idle"),
        ("idle: {warn: 10m}", "idle"),
        ("idle: warn 2h, suspend 1h", "warn has to come before suspend"),
    ],
)
def test_a_wrong_option_is_named_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(OperatorError) as refused:
        config.load(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert words in str(refused.value)


def test_profiles_are_found_beside_the_configuration_by_model_and_by_batch(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TABLE)
    file = written(tmp_path, "profiles: [table.csv]")
    found = config.profiles_of(config.load(file), file)
    assert found["bert"] == found["bert/16"] == {1: 10.0, 2: 19.0}
    assert found["bert/32"] == {1: 6.0}
    assert found["bert/64"] == {1: 3.0}


def test_the_first_of_several_tables_counts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("model,gpus,iters_per_s\nx,1,5\n")
    (tmp_path / "b.csv").write_text("model,gpus,iters_per_s\nx,1,7\ny,1,8\n")
    file = written(tmp_path, "profiles: [a.csv, b.csv]")
    assert config.profiles_of(config.load(file), file) == {"x": {1: 5.0}, "y": {1: 8.0}}


@pytest.mark.parametrize(
    ("table", "words"),
    [(None, "no such file"), ("model,gpus,iters_per_s\nx,one,5\n", "line 2, column gpus"), ("a,b\n1,2\n", "line 1")],
)
def test_a_table_that_cannot_be_read_is_named_with_its_line(tmp_path: Path, table: str | None, words: str) -> None:
    if table is not None:
        (tmp_path / "table.csv").write_text(table)
    file = written(tmp_path, "profiles: [table.csv]")
    with pytest.raises(OperatorError) as refused:
        config.profiles_of(config.load(file), file)
    assert str(refused.value).startswith(f"{file}: profiles: {tmp_path / 'table.csv'}: ")
    assert words in str(refused.value)


def test_the_published_tables_can_be_profiles(tmp_path: Path) -> None:
    data = Path(__file__).parents[3] / "shared" / "data"
    if not data.is_dir():
        pytest.skip("the published measurements are not on this machine")
    names = ("afs_models_gtx1080.csv", "elasticflow_throughputs.csv", "gavel_simulation_throughputs.csv")
    file = written(tmp_path, f"profiles: [{', '.join(str(data / name) for name in names)}]")
    found = config.profiles_of(config.load(file), file)
    assert len(found) > 20
    for rates in found.values():
        assert all(share >= 1 and rate > 0 and math.isfinite(rate) for share, rate in rates.items())


def test_an_etcd_that_would_not_be_used_is_refused(tmp_path: Path) -> None:
    """Otherwise each of several such controllers would lead a separate cluster."""
    file = written(tmp_path, "etcd: {endpoints: ['10.0.0.1:2379']}")
    with pytest.raises(OperatorError, match="add `store: etcd`"):
        config.etcd_of(config.load(file), file)
    assert config.etcd_of(config.load(written(tmp_path, "store: sqlite")), file) is None


def test_what_is_done_about_idle_jobs_is_configured(tmp_path: Path) -> None:
    assert not config.load(written(tmp_path, "")).idle_rules
    rules = config.load(written(tmp_path, "idle: warn 10m, suspend 1h")).idle_rules
    assert (rules.warn_s, rules.shrink_s, rules.suspend_s) == (600.0, None, 3600.0)
    (told,) = config.mistakes(written(tmp_path, "cluster: lab\nidle: warn 10m, kill 1h"))
    assert told.startswith(f"{tmp_path}/controller.yaml: line 2: idle: 'kill 1h' is not one of")
