"""Policies, servers and costs by name, as a file, or as plain values: equal for the command line and for Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..protocol.errors import UserError
from ..runtime import config
from ..scheduler.options import WrongOption, convert, plain
from ..scheduler.plugin import PolicyError
from ..scheduler.policies import NAMES
from ..scheduler.profiles.tables import Table, read
from ..scheduler.quotas.reservations import unix_s
from ..scheduler.quotas.terms import NO_QUOTAS, Quotas
from ..scheduler.scheduler import Choice as PolicyFile
from ..scheduler.scheduler import Scheduler, Stages, load_scheduler, load_stages
from . import clusters, costs
from .clusters import Cluster
from .costs import Costs
from .failures import Rates
from .workload import servers as alike

DEFAULT_SERVERS, DEFAULT_GPUS = 16, 4  # the cluster of AFS 5.1
QUOTAS = "quotas"  # names a document with quotas in errors
PYTHON = ".py"  # ends the name of a file with a user's own policy
ENDINGS = (".yaml", ".yml", PYTHON)

Choice = str | Path | Mapping[str, Any]  # a policy


def stages(
    packing: bool, placement: str | None, admission: str | None, dash: str, quotas: Quotas = NO_QUOTAS
) -> Stages:
    """Return the stages around every policy that has no file with other stages. dash: before the names of options."""
    try:
        return load_stages("simulate", admission, "network" if packing else None, placement, Stages(quotas=quotas))
    except WrongOption as error:
        raise UserError(f"{dash}{error.field}: {error.text}") from None


def quotas(given: str | Path | Mapping[str, Any] | None) -> Quotas:
    """Return the quotas of a policy file, or of a document like one; its policy and other stages do not matter."""
    if given is None:
        return NO_QUOTAS
    document = plain(values(given) if isinstance(given, Mapping) else config.load_yaml(Path(given), UserError))
    try:
        if not isinstance(document, dict) or document.get("quotas") is None:
            raise WrongOption(QUOTAS, "", "no field quotas; wanted is one like quotas: {users: {alice: {gpus: 4}}}")
        return convert({"policy": "", **document}, PolicyFile, QUOTAS).quotas or NO_QUOTAS
    except WrongOption as error:
        raise refused(QUOTAS if isinstance(given, Mapping) else str(given), error) from None


def schedulers(given: Sequence[Choice] | Mapping[str, Choice], default: Stages, dash: str) -> dict[str, Scheduler]:
    """Return the schedulers by label, in this order.

    The label is the key in a mapping, else the policy's name, or that of its file without the ending. Where several
    documents have one name, their parameters are added to it.
    """
    if isinstance(given, Mapping):
        return {label: _scheduler(one, default, dash) for label, one in given.items()}
    if not isinstance(given, Iterable):
        raise UserError(f"{dash}policy: {given!r} is not a name, a file, or a document")
    choices = [one for choice in given for one in (NAMES if choice == "all" else [choice])]
    labels = [_label(one) for one in choices]
    found: dict[str, Scheduler] = {}
    for label, one in zip(labels, choices, strict=True):
        if labels.count(label) > 1 and isinstance(one, Mapping) and one.get("parameters"):
            label = f"{label} " + " ".join(f"{name}={value}" for name, value in one["parameters"].items())
        if label in found:
            raise UserError(f"{dash}policy: {label} is given twice")
        found[label] = _scheduler(one, default, dash)
    return found


def values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with plain values in place of NumPy's numbers and arrays."""
    return {name: _value(of) for name, of in document.items()}


def _value(of: Any) -> Any:
    if isinstance(of, Mapping):
        return values(of)
    if isinstance(of, list | tuple):
        return [_value(one) for one in of]
    return of.tolist() if isinstance(of, np.generic | np.ndarray) else of


def is_file(policy: str | Path) -> bool:
    """Return whether `policy` is a policy file rather than a name."""
    return isinstance(policy, Path) or "/" in policy or policy.endswith(ENDINGS)


def _label(choice: Choice) -> str:
    if isinstance(choice, Mapping):
        return str(choice.get("policy"))
    return Path(choice).stem if is_file(choice) else str(choice)


def _scheduler(choice: Choice, default: Stages, dash: str) -> Scheduler:
    try:
        if not isinstance(choice, Mapping):
            if is_file(choice):
                return scheduler_in(Path(choice), default)
            choice = {"policy": str(choice)}
        return load_scheduler(values(choice), "", default, str(Path.cwd()))
    except WrongOption as error:
        field = "" if error.field in ("", "policy") else f"{error.field}: "
        raise UserError(f"{dash}policy: {field}{error.text}") from None
    except PolicyError as error:
        raise UserError(f"{dash}policy: {error}") from None


def scheduler_in(file: Path, default: Stages | None = None, python: bool = True) -> Scheduler:
    """Return the scheduler that a policy file describes; `default` has the stages that the file does not name.
    `python`: the file may be, or name, a Python file. Raises UserError, naming file, line and field, or PolicyError.
    """
    try:
        return read_scheduler(file, default, python)
    except WrongOption as error:
        raise UserError(sentence(file, error)) from None


def read_scheduler(file: Path, default: Stages | None = None, python: bool = True) -> Scheduler:
    """Return what `scheduler_in` returns. Raises WrongOption, UserError or PolicyError."""
    document = {"policy": str(file.absolute())} if file.suffix == PYTHON else config.load_yaml(file, UserError)
    return load_scheduler(document, str(file), default or Stages(), str(file.absolute().parent) if python else None)


def sentence(file: Path, error: WrongOption) -> str:
    """Return a mistake of a policy file as a sentence with file, line and field."""
    line = config.line_of(file, error.field)
    where = f"{file}: line {line}" if line is not None else str(file)
    return f"{where}: {error.field}: {error.text}" if error.field else f"{where}: {error.text}"


def refused(source: str, error: WrongOption) -> UserError:
    """Return a mistake of a document as one sentence, with its line where the source is a file."""
    return UserError(sentence(Path(source), error) if Path(source).is_file() else str(error))


def cluster(file: str | Path | Mapping[str, Any] | None, servers: int | None, gpus: int | None, dash: str) -> Cluster:
    """Return the servers of a file or document, or so many servers of equal size."""
    if file is None:
        return alike(servers or DEFAULT_SERVERS, gpus or DEFAULT_GPUS)
    if servers is not None or gpus is not None:
        raise UserError(
            f"{dash}cluster says which servers there are; leave out {dash}servers and {dash}gpus-per-server"
        )
    if isinstance(file, Mapping):
        return clusters.build(config.convert(values(file), clusters.ClusterFile, "cluster", UserError), "cluster")
    return clusters.build(config.load(Path(file), clusters.ClusterFile, UserError), str(file))


def overhead(given: str | Path | Mapping[str, Any] | Costs, dash: str) -> Costs:
    """Return the costs of a preset, or of a file or document."""
    if isinstance(given, Costs):
        return given
    if isinstance(given, Mapping):
        return costs.build(config.convert(values(given), costs.CostsFile, "overhead", UserError), "overhead")
    if isinstance(given, str) and "/" not in given and not given.endswith((".yaml", ".yml")):
        return costs.preset(given, f"{dash}overhead")
    return costs.build(config.load(Path(given), costs.CostsFile, UserError), str(given))


def failures(given: str | Path | Mapping[str, Any] | None) -> Rates | Table | None:
    """Return the failures of a trace, or at the rates of a YAML file or document."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return config.convert(values(given), Rates, "failures", UserError)
    path = Path(given)
    return config.load(path, Rates, UserError) if path.suffix in (".yaml", ".yml") else read(path)


def conditions(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the values to keep by column, from texts like COLUMN=VALUE."""
    found: dict[str, list[str]] = {}
    for text in texts:
        column, equals, value = text.partition("=")
        if not equals or not column:
            raise UserError(f"--where: {text!r} is not COLUMN=VALUE")
        found.setdefault(column, []).append(value)
    return found


def begins_s(given: str | None, where: str) -> float | None:
    """Return the Unix time at which a trace begins. Raises UserError, naming `where`."""
    try:
        return None if given is None else unix_s(where, given)
    except ValueError as error:
        raise UserError(str(error)) from None
