"""The scheduler of a cluster: a policy, and the stages before and after it, as a file names them.

A policy file names a policy with its parameters, and may name stages too::

    policy: afs-p
    parameters: {unit_s: 600}
    admission: {name: bounded, parameters: {waiting_jobs: 200}}
    packing: network
    placement: buddy
    deadlines: {margin_s: 60, failures_per_server_day: 0.02}
    quotas: {users: {alice: {gpus: 4, jobs: 10}}}
    reservations: [{name: class, gpus: 2, from: 2026-11-30T18:00+01:00, to: 2026-11-30T20:00+01:00}]

Stages that it does not name are those of the controller's configuration. If neither names an admission, the policy's
own one is used, if it has one (`elasticflow`: deadlines that cannot be kept are refused). In place of a policy's name
it may have that of a Python file (`plugin`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec.structs import replace as replace_in

from . import plugin
from .admission import ADMIT_ALL, Admission, AdmitAll, Bounded
from .deadlines.admitting import EdfAdmission, ElasticflowAdmission
from .deadlines.table import DEFAULT_TERMS, DeadlineTerms
from .options import WrongOption, convert, plain
from .placement.registry import FEWEST_SERVERS, PLACEMENTS, Placement
from .policies import ELASTIC, LoadedPolicy, Policy, load_policy
from .quotas.reservations import MOST_RESERVATIONS, TimedReservation, repeated
from .quotas.terms import NO_QUOTAS, Quotas

ADMISSIONS = (AdmitAll, Bounded, ElasticflowAdmission, EdfAdmission)
PACKINGS = {
    "none": "Jobs get the shares that the policy gives them.",
    "network": "Shares are only parts of a server that divide it, or whole servers, so that no two jobs share a server's "
    "network (AFS 4.4, App. E). They are the nearest to those that the policy gives.",
}


@dataclass(frozen=True)
class Stages:
    """The stages around the policy.

    `packing`: whether shares are regulated (AFS 4.4). `deadlines`: the terms on which they are promised. `quotas`:
    guarantees and limits of users and groups. `reservations`: GPUs that are out of use for a period.
    """

    admission: Admission = ADMIT_ALL
    packing: bool = False
    placement: Placement = FEWEST_SERVERS
    deadlines: DeadlineTerms = DEFAULT_TERMS
    quotas: Quotas = NO_QUOTAS
    reservations: tuple[TimedReservation, ...] = ()


@dataclass(frozen=True)
class Scheduler:
    """A policy, its parameters, and its stages. `source`: the file that names them, for messages."""

    policy: Policy
    parameters: msgspec.Struct
    stages: Stages
    source: str

    @property
    def terms(self) -> DeadlineTerms | None:
        """The terms on which deadlines are promised; None: this policy cannot promise any."""
        if isinstance(self.parameters, DeadlineTerms):
            return self.parameters
        if self.policy.name not in ELASTIC:
            return None
        return replace_in(self.stages.deadlines, powers=self.stages.packing)


class StageChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stage with its parameters. In a file the name alone stands for a stage with default parameters."""

    name: str
    parameters: dict[str, Any] = {}


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy file."""

    policy: str
    parameters: dict[str, Any] = {}
    admission: str | StageChoice | None = None
    packing: str | None = None
    placement: str | StageChoice | None = None
    deadlines: DeadlineTerms | None = None
    quotas: Quotas | None = None
    reservations: tuple[TimedReservation, ...] | None = None


def load_scheduler(
    document: object, source: str, default: Stages = Stages(), python_from: str | None = None
) -> Scheduler:
    """Return the scheduler that a policy file describes; `default` has the stages that it does not name.

    `python_from`: the directory to which names of Python files with policies are relative; None: such files are
    refused. Raises WrongOption naming source and field, or `plugin.PolicyError`.
    """
    choice = convert(plain(document), Choice, source)
    policy: LoadedPolicy
    if not choice.policy.endswith(plugin.ENDING):
        policy = load_policy({"policy": choice.policy, "parameters": choice.parameters}, source)
    elif python_from is None:
        raise plugin.refused(source)
    else:
        path = choice.policy if choice.policy.startswith("/") else f"{python_from}/{choice.policy}"
        policy = plugin.load(path, choice.parameters, source)
    stages = load_stages(source, choice.admission, choice.packing, choice.placement, default)
    if choice.deadlines is not None:
        stages = replace(stages, deadlines=choice.deadlines)
    if choice.quotas is not None:
        stages = replace(stages, quotas=choice.quotas)
    if choice.reservations is not None:
        stages = replace(stages, reservations=choice.reservations)
    _check_quotas(policy, stages.quotas, source)
    _check_reservations(stages.reservations, source)
    return Scheduler(policy, policy.parameters, _with_own_admission(policy, stages, choice), source)


def _check_quotas(policy: Policy, quotas: Quotas, source: str) -> None:
    """Raise WrongOption if GPUs are guaranteed under a policy that cannot shrink other jobs at any time."""
    every = [*quotas.users.values(), *quotas.groups.values(), quotas.default]
    if policy.name not in ELASTIC and any(one.gpus or one.most_gpus is not None for one in every):
        text = f"gpus and most_gpus need a policy that may change shares at any time ({', '.join(sorted(ELASTIC))})"
        raise WrongOption(source, "quotas", f"{text}, not {policy.name}; jobs alone is allowed under each")


def _check_reservations(reservations: tuple[TimedReservation, ...], source: str) -> None:
    """Raise WrongOption if there are too many reservations, or two with one name."""
    if len(reservations) > MOST_RESERVATIONS:
        raise WrongOption(source, "reservations", f"{len(reservations)} are more than {MOST_RESERVATIONS}")
    if name := repeated(reservations):
        raise WrongOption(source, "reservations", f"two of them are called {name}")


def _with_own_admission(policy: LoadedPolicy, stages: Stages, choice: Choice) -> Stages:
    """Return the stages with the policy's own admission, which uses the policy's terms, where it applies."""
    make = getattr(policy, "own_admission", None)
    if make is None:
        return stages
    own_admission: Admission = make()
    if stages.admission is ADMIT_ALL or choice.admission == own_admission.name:
        return replace(stages, admission=own_admission)
    return stages


def load_stages(
    source: str,
    admission: str | StageChoice | None,
    packing: str | None,
    placement: str | StageChoice | None,
    default: Stages = Stages(),
) -> Stages:
    """Return the stages of these names; None: as in `default`. Raises WrongOption naming source and field."""
    return Stages(
        admission=default.admission if admission is None else _admission(admission, source),
        packing=default.packing if packing is None else _packing(packing, source),
        placement=default.placement if placement is None else _placement(placement, source),
        deadlines=default.deadlines,
        quotas=default.quotas,
        reservations=default.reservations,
    )


def _admission(choice: str | StageChoice, source: str) -> Admission:
    kind, parameters, at = _known(choice, {kind.name: kind for kind in ADMISSIONS}, source, "admission")
    found: Admission = kind(convert(parameters, kind.Parameters, source, at))
    return found


def _packing(name: str, source: str) -> bool:
    if name not in PACKINGS:
        raise WrongOption(source, "packing", f"there is no packing {name!r}; known are {', '.join(PACKINGS)}")
    return name == "network"


def _placement(choice: str | StageChoice, source: str) -> Placement:
    kind, parameters, at = _known(choice, {kind.name: kind for kind in PLACEMENTS}, source, "placement")
    found: Placement = kind(convert(parameters, kind.Parameters, source, at))
    return found


def _known(
    choice: str | StageChoice, kinds: Mapping[str, Any], source: str, field: str
) -> tuple[Any, dict[str, Any], str]:
    """Return the class of this name, its parameters, and the field of the parameters."""
    wanted = StageChoice(choice) if isinstance(choice, str) else choice
    if wanted.name not in kinds:
        at = field if isinstance(choice, str) else f"{field}.name"
        raise WrongOption(source, at, f"there is no {field} {wanted.name!r}; known are {', '.join(kinds)}")
    return kinds[wanted.name], wanted.parameters, f"{field}.parameters"


def document(scheduler: Scheduler) -> dict[str, Any]:
    """Return a policy file that describes `scheduler` in full.

    A Python file's name is followed by `code`, a digest of its text.
    """
    stages = scheduler.stages
    code = {"code": scheduler.policy.code} if isinstance(scheduler.policy, plugin.LoadedPlugin) else {}

    def stage(one: Admission | Placement) -> dict[str, Any]:
        return {"name": one.name, "parameters": msgspec.to_builtins(one.parameters)}

    return {
        "policy": scheduler.policy.name,
        "parameters": msgspec.to_builtins(scheduler.parameters),
        "admission": stage(stages.admission),
        "packing": "network" if stages.packing else "none",
        "placement": stage(stages.placement),
        "deadlines": msgspec.to_builtins(stages.deadlines),
        "quotas": msgspec.to_builtins(stages.quotas),
        "reservations": msgspec.to_builtins(stages.reservations),
        **code,
    }
