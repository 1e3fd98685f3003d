"""A checkpoint's contents for other programs: PyTorch, torch.distributed.checkpoint, safetensors.

``python -m elasticd.worker.state.exporting CHECKPOINT OUT`` writes one of

* ``OUT.safetensors``: the model's tensors, for Hugging Face's libraries. Of tied tensors one is stored, and the metadata
  map the other names to it, as by `safetensors.torch.save_model`;
* ``OUT.pt`` (or .pth, .bin): a mapping for `torch.load(OUT, weights_only=True)`, with the model's `state_dict` under
  "model", and "optimizer", "scheduler" (several: a list under "optimizers", "schedulers"), "scaler", "averages",
  "registered", "step", "epoch";
* a directory ``OUT/``: model and optimizers for `torch.distributed.checkpoint.load`, on any number of processes.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...protocol.errors import ElasticError, OperatorError, PeerError, UserError
from ..plain import restored, unpack
from .checkpoint import Document, latest, load
from .epoch_values import NAME as OF_EPOCH
from .held import KEYS
from .training_state import FORMAT

PICKLED = (".pt", ".pth", ".bin")
SAFETENSORS = ".safetensors"
OLD = "it is of an earlier version, which did not keep the names of the model's state_dict: save the job's state again"


def main(words: Sequence[str] | None = None) -> int:
    """Export one checkpoint; return the exit code: 0, or that of an error, which is written to stderr."""
    parser = argparse.ArgumentParser(prog="elasticctl export")
    parser.add_argument("source", type=Path, help="a checkpoint, or a directory of checkpoints")
    parser.add_argument("out", help="a file .safetensors or .pt, or a directory with / at its end")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    given = parser.parse_args(words)
    try:
        print(export(given.source, given.out, given.force))
    except ElasticError as error:
        print(f"elasticctl: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def export(source: Path, out: str, force: bool = False) -> str:
    """Write the checkpoint `source`, or the newest one in that directory, in the format that `out` names.

    Returns a sentence about the written file. Raises UserError, OperatorError, with nothing written.
    """
    kind = Path(out).suffix.lower()
    if kind not in (*PICKLED, SAFETENSORS) and not out.endswith("/"):
        raise UserError(f"{out}: say a file {SAFETENSORS} or {PICKLED[0]}, or a directory with / at its end")
    target = Path(out)
    if target.exists() and (not force or target.is_dir()):
        raise UserError(f"{out} exists{'' if target.is_dir() else ': --force replaces it'}")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent}: there is no such directory")
    contents = Contents(source, _read(source))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        if kind == SAFETENSORS:
            _write_safetensors(contents, beside)
        elif kind:
            torch.save(contents.document(), beside)
        else:
            _write_distributed(contents, beside)
        os.replace(beside, target)
    except OSError as error:
        raise OperatorError(f"{out}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(beside) if beside.is_dir() else beside.unlink(missing_ok=True)
    left = f"; without {', '.join(contents.left_out)}" if contents.left_out and kind in PICKLED else ""
    return f"{out}: the state after {contents.steps:,} steps{left}"


def _read(source: Path) -> Document:
    if not source.is_dir():
        return load(source)
    document, trouble, _ = latest(source, None)
    if document is None:
        raise OperatorError(trouble or f"{source}: there is no checkpoint in it")
    return document


class Contents:
    """The contents of a checkpoint as a script has given them."""

    def __init__(self, path: Path, document: Document) -> None:
        """path: the checkpoint, for error messages. Raises OperatorError if it is of another version."""
        self._header, self._tensors = document.header, document.tensors
        if self._header.get("format") != FORMAT:
            raise OperatorError(f"{path}: has format {self._header.get('format')!r}; this version exports {FORMAT}")
        if not self._header.get(KEYS):
            raise OperatorError(f"{path}: {OLD}")
        self.left_out: list[str] = []  # registered values that `torch.load(weights_only=True)` cannot read

    @property
    def steps(self) -> int:
        """Number of steps that the state has been trained."""
        return int(self._header["counters"]["applied"]) + 1

    def model(self) -> dict[str, torch.Tensor]:
        """Return the model's `state_dict`."""
        return self._state_dict("")

    def tied(self) -> dict[str, str]:
        """Return the keys of tensors that have an earlier key, with that."""
        first: dict[int, str] = {}
        numbers = self._header[KEYS][""].items()
        return {key: first[number] for key, number in numbers if first.setdefault(number, key) != key}

    def optimizers(self, by_key: bool = False) -> list[dict[str, Any]]:
        """Return each optimizer's `state_dict`. by_key: with the model's keys in place of the parameters' numbers."""
        return [self._optimizer(packed, by_key) for packed in self._header["optimizers"]]

    def document(self) -> dict[str, Any]:
        """Return all that `torch.load(weights_only=True)` can read."""
        header = self._header
        schedulers = [unpack(each, lambda content, _: restored(content)) for each in header["schedulers"]]
        averages = [self._state_dict(name) for name in header[KEYS] if name.startswith("averaged ")]
        found = {"model": self.model(), "step": self.steps, "epoch": int(header["counters"]["epoch"])}
        found |= _one_or_several("optimizer", self.optimizers()) | _one_or_several("scheduler", schedulers)
        if header["scaler"] is not None:
            found["scaler"] = unpack(header["scaler"])
        if averages:
            found["averages"] = averages
        if registered := dict(self._registered()):
            found["registered"] = registered
        return found

    def _state_dict(self, module: str) -> dict[str, torch.Tensor]:
        return {key: self._tensors[number] for key, number in self._header[KEYS][module].items()}

    def _take(self, number: int, present: Any) -> torch.Tensor:
        return self._tensors[number]

    def _optimizer(self, packed: Mapping[str, Any], by_key: bool) -> dict[str, Any]:
        members = [position for group in packed["groups"] for position in group["params"]]
        names: dict[int, Any] = {position: number for number, position in enumerate(members)}
        if by_key:
            keys = {number: key for key, number in reversed(self._header[KEYS][""].items())}
            names = {position: keys.get(position, self._header["tensors"][position][0]) for position in members}
        states = {names[position]: unpack(state, self._take) for position, state in packed["states"]}
        groups = [
            {**unpack(group["options"], self._take), "params": [names[position] for position in group["params"]]}
            for group in packed["groups"]
        ]
        return {"state": states, "param_groups": groups}

    def _registered(self) -> Iterator[tuple[str, Any]]:
        self.left_out.clear()
        for name, packed in self._header["registered"].items():
            if name == OF_EPOCH:
                continue
            try:
                value = unpack(packed, self._take)
            except PeerError:  # a class of the script, which is not loaded here
                value = NotImplemented
            if _is_plain(value):
                yield name, value
            else:
                self.left_out.append(name)


def _one_or_several(name: str, found: list[Any]) -> dict[str, Any]:
    if len(found) == 1:
        return {name: found[0]}
    return {f"{name}s": found} if found else {}


def _is_plain(value: Any) -> bool:
    """Return whether `torch.load(weights_only=True)` reads such a value."""
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(each) for pair in value.items() for each in pair)
    return value is None or isinstance(value, torch.Tensor) or type(value) in (bool, int, float, str)


def _write_safetensors(contents: Contents, path: Path) -> None:
    save = _safetensors()
    tied = contents.tied()
    tensors = {key: tensor.contiguous() for key, tensor in contents.model().items() if key not in tied}
    save(tensors, path, {"format": "pt", **tied})


def _safetensors() -> Callable[[Any, Path, Any], None]:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise OperatorError(f"a file {SAFETENSORS} needs the package safetensors: pip install safetensors") from None
    save: Callable[[Any, Path, Any], None] = save_file
    return save


def _write_distributed(contents: Contents, path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    state = {"model": contents.model(), **_one_or_several("optimizer", contents.optimizers(by_key=True))}
    save(state, checkpoint_id=path, no_dist=True)


if __name__ == "__main__":
    sys.exit(main())
