"""Whatever a file contains, its reader reports the error in a sentence and quickly."""

from __future__ import annotations

import gzip
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elasticd.protocol.errors import UserError
from elasticd.runtime.config import load_yaml
from elasticd.scheduler.profiles import tables
from verification.fuzz.documents import documents, read, spoil

NAMES = sorted(documents())
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize("name", NAMES)
def test_the_samples_are_right(name: str, tmp_path: Path) -> None:
    document = documents()[name]
    assert read(document, document.sample, tmp_path) == "" or name == "trace"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=80, suppress_health_check=list(HealthCheck), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_spoiled_file_is_refused_in_words_or_read(name: str, seed: int, tmp_path: Path) -> None:
    rng, document = random.Random(seed), documents()[name]
    for _ in range(6):
        said = read(document, spoil(rng, document.sample), tmp_path)
        assert len(said) < 100_000


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, suppress_health_check=list(HealthCheck), deadline=None)
@given(data=st.binary(max_size=100) | st.text(max_size=100).map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_are_refused_in_words_or_read(name: str, data: bytes, tmp_path: Path) -> None:
    read(documents()[name], data, tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "trace"])
@pytest.mark.parametrize("text", [BOMB, "[" * 100_000, "{a: " * 100_000, "a: " + "9" * 100_000, "x" * (3 << 20)])
def test_a_small_file_that_means_much_is_refused_at_once(name: str, text: str, tmp_path: Path) -> None:
    began = time.process_time()
    assert read(documents()[name], text.encode(), tmp_path)
    assert time.process_time() - began < 1.0


def test_names_for_a_few_values_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: &same {x: 1}\nb: *same\nc: {<<: *same, y: 2}\n")
    assert load_yaml(path) == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


def test_a_small_trace_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 1_000_000))
    monkeypatch.setattr(tables, "MOST_BYTES", 1 << 20)
    with pytest.raises(UserError, match="more than"):
        tables.read(path)
