"""Messages about names under which two workers' scripts keep different values, with the line that the script needs for
each.

A sentence names the value on both workers, the line of the script that changes it, and the remedy: a value of the job
(`run.state`), one of each virtual worker (`run.per_virtual_worker`), one that is derived at an epoch's beginning
(`run.epoch_begin`), or an object with a state (`run.register`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..kept import CACHE, Difference, Kind, Node, is_function_type, root_of
from ..source.assigned import Sources
from ..source.save_calls import is_part

MODE = "model.training"  # the mode of the model's modules, as a name of `Reach`
TOLD = 3  # names in one message, which gives only the number of the others
UNSEEN = "code before the loop, or at an epoch's beginning, has made something that cannot be looked into"
DRAWN = (
    "the loop body draws other random numbers on the leader than on other workers: move what only one worker does, such as "
    "`if run.is_leader: estimate_loss()`, behind optimizer.step() or into a function of run.every(steps=…), where it shifts no "
    "draws of others"
)

AVERAGED = (
    "compute it from averages over all workers: run.mean(loss=loss) in the loop body, and between steps run.means['loss'] in "
    "place of loss.item()"
)

_GLOBAL = {"torch.Generator": "torch's", "random.Random": "Python's"}


def explain(
    found: Sequence[Difference],
    workers: tuple[str, str],
    sources: Sources,
    *,
    opaque: Sequence[str] = (),
    batch_size: int | None = None,
) -> str:
    """Explain why two workers' gradients differ, as far as it is known: by names, or else by code before the loop.

    found: result of `kept.differences`. workers: their names, in the order of the arguments of `differences`. opaque:
    of both looks (`Reach.opaque`). batch_size: of one virtual worker.
    """
    if found:
        return sentences(found, workers, sources, batch_size)
    if text := of_counter(sources):
        return text
    return f"{UNSEEN} ({'; '.join(opaque[:TOLD])})" if opaque else UNSEEN


def of_registered(places: Mapping[str, str]) -> str:
    """Return a sentence on values of `run.register` that loop bodies change, by name and line, with the remedy."""
    names = ", ".join(f"{name} ({place})" for name, place in list(places.items())[:TOLD])
    return (
        f"loop bodies change {names} of a registered value, and the loss depends on that. Each worker runs only some of the "
        "bodies: keep a value that they change by run.state(…) in place of run.register"
    )


def differs_registered(found: Sequence[Difference], workers: tuple[str, str]) -> str:
    """Return a sentence on values of `run.register` that differ, with the remedy; "" without any."""
    if not found:
        return ""
    one, other = (_shown(node) for node in (found[0].ones, found[0].others))
    values = f"is {one} on {workers[0]} and {other} on {workers[1]}" if one != other else f"({one}) differs"
    return (
        f"the registered value {root_of(found[0].name)!r} has been changed by loop bodies, of which each worker runs only "
        f"some: {found[0].name} {values}. Keep a value that bodies change by run.state(…) in place of run.register"
    )


def begin_anew(places: Mapping[str, str]) -> str:
    """Return a clause on values that depend on the earlier loop bodies of a pass, by name and line, with the remedy."""
    names = ", ".join(f"{name} ({place})" for name, place in list(places.items())[:TOLD])
    return (
        f"what depends on earlier loop bodies begins anew: {names} (count by run.steps_done or the epoch, take by it what stands "
        "beside the batches or epochs, and keep other values by run.state(…))"
    )


def of_generators(names: Sequence[str], sources: Sources) -> str:
    """Return a sentence on variables of generators between the loop and the batches, such as `mixed.previous`."""
    told = ", ".join(f"{name} ({sources.where(name)})" for name in names[:TOLD])
    return f"{told} may follow from the batches that this worker has read: {_yields_alone(names[0].partition('.')[0])}"


def _yields_alone(function: str) -> str:
    return f"each worker's {function}() has its own: what it yields must follow from the batch and run.steps_done alone"


def of_counter(sources: Sources) -> str:
    """Return a sentence on the first variable that counts this worker's loop bodies; "" without any."""
    for name, place in sources.counters.items():
        return f"{name} ({place}) counts the loop bodies of each worker alone: take run.steps_done in its place"
    return ""


def sentences(
    found: Sequence[Difference], workers: tuple[str, str], sources: Sources, batch_size: int | None = None
) -> str:
    """Return one sentence for each of the first three names, and the number of the others."""
    told = []
    keys: set[str] = set()  # a second value of the same name gets a longer one
    for each in (_by_changed_name(each, sources) for each in found[:TOLD]):
        key = _key(each.name)
        told.append(sentence(each, workers, sources, batch_size, _key(each.name, whole=key in keys)))
        keys.add(key)
    return "; ".join([*told, *([f"and {len(found) - TOLD} more"] if len(found) > TOLD else [])])


def sentence(
    difference: Difference,
    workers: tuple[str, str],
    sources: Sources,
    batch_size: int | None = None,
    key: str | None = None,
) -> str:
    """Return the name that differs with both values, the line that changes it, and the line to write. key: as of `remedy`."""
    difference = _by_changed_name(difference, sources)
    place = sources.where(difference.name, difference.owners)
    at = f" ({place})" if place is not None else ""
    one, other = (_shown(node) for node in (difference.ones, difference.others))
    if one == other:
        at = f", {place}" if place is not None else ""
        what = f"{difference.name} ({one}{at}) differs between {workers[0]} and {workers[1]}"
    else:
        what = f"{difference.name} is {one} on {workers[0]} and {other} on {workers[1]}{at}"
    at_epochs = sources.at_epochs(difference.name, difference.owners) or sources.at_epochs(root_of(difference.name))
    if (
        not difference.changed
        and difference.node.type != CACHE
        and (at_epochs is None or difference.node.kind is Kind.PLAIN)
    ):
        return (
            f"{what}, and was different before the loop: make it after elastic.join(), the same in each process (a set has "
            "another order in each: sorted(...))"
        )
    return f"{what}; {remedy(difference, sources, batch_size, key)}"


def _by_changed_name(difference: Difference, sources: Sources) -> Difference:
    """Return the difference under that name of the value by which a line of the loop changes it, if there is one."""
    names = difference.by_each_name
    return next((each for each in names if sources.is_changed_in_loop(each.name, each.owners)), difference)


# Errors of a script that uses a value before creating it, or that counts and collects in loop bodies and had too few
_TOO_FEW = (ZeroDivisionError, IndexError, ValueError)
UNBOUND = (NameError, AttributeError, KeyError, TypeError, *_TOO_FEW)


def of_error(error: BaseException, sources: Sources) -> str:
    """Explain why a joining worker's script has raised this error, of `UNBOUND`, in code that other workers have run."""
    reason = of_unbound(error, sources) if isinstance(error, NameError | AttributeError) else None
    if isinstance(error, _TOO_FEW):
        reason = (
            "it has run few loop bodies of the epoch, or none, so what they count or collect is incomplete here: use the job's "
            "averages, run.mean(…) in the body and run.means behind it, or keep the value by run.state(…)"
        )
    if reason is None:
        reason = "the script keeps something that an earlier step has made: register it: run.state(...)"
    return f"{type(error).__name__}: {error}: {reason}"


def of_unbound(error: NameError | AttributeError, sources: Sources) -> str | None:
    """Explain why the name is unbound, with the remedy. None: no line of the loop assigns it."""
    local = re.search(r"variable '(\w+)'", str(error)) if isinstance(error, UnboundLocalError) else None
    name = error.name or (local[1] if local else None)  # Python sets no name in an UnboundLocalError
    place = sources.where(name) if name else None
    if place is None:
        return None
    return (
        f"the loop assigns {name} in some steps or epochs only ({place}) and uses it in others: assign it in each, or keep it "
        f"with the job: state = run.state({name}=...), with the value that it begins with"
    )


def _holder(name: str) -> str:
    """Return the container of an item, or the name itself."""
    return re.sub(r"(\[[^.]*\]|\(\w*\))+$", "", name)


def _key(name: str, whole: bool = False) -> str:
    """Return a name for `run.state`: of an attribute the last part, or, if `whole`, all of them."""
    holder = _holder(name)
    text = re.sub(r"\W+", "_", holder) if whole else holder.rpartition(".")[2]
    return text.strip("_") or text


def remedy(difference: Difference, sources: Sources, batch_size: int | None = None, key: str | None = None) -> str:
    """Return what to write, in the imperative, with the line. key: the value's name in that line."""
    node, owners = difference.node, difference.owners
    holder = _holder(difference.name)
    argument = re.search(r"\((\w+)\)", difference.name)
    key = key or _key(difference.name)
    root = root_of(holder)
    if difference.name == MODE:
        return f"set it in each loop body, before the forward pass: {root}.train()"
    if argument is not None:  # a default argument that the function changes
        holder, key = difference.name, argument[1]
    if node.kind is Kind.GENERATOR:
        whose = _GLOBAL.get(node.type, "NumPy's")
        return (
            f"draw from {whose} global generator, which the runtime seeds for each virtual worker, or "
            f"run.state({key}={holder})"
        )
    is_bound = None in (difference.ones, difference.others) and is_function_type(node.type)
    if "." in difference.name and sources.yields(root):
        return _yields_alone(root)
    if _is_hook(difference):
        return "register the hook before the loop, and let it act from an epoch on: `if epoch >= 1:` in the hook"
    if is_bound or node.kind in (Kind.OTHER, Kind.MODEL) or node.type == "method" or node.is_class:
        return (
            "choose it in every epoch from the epoch: `if epoch >= 1:` in place of `if epoch == 1:`; or in each loop body by a "
            "value of the job, such as state = run.state(switched=False)"
        )
    if node.type == CACHE:
        return (
            "what a cache keeps must follow from the arguments alone: draw no random numbers in the function, or draw them "
            "before the loop"
        )
    derived = sources.at_epochs(difference.name, owners)
    if derived is not None and node.kind is not Kind.PLAIN and not owners:
        return f"compute it once for all workers: {holder} = run.epoch_begin(lambda: {derived})"
    if node.kind is not Kind.PLAIN and (derived := sources.at_epochs(root) if owners else None) is not None:
        return (
            f"{root} = {derived} makes it at the beginning of each epoch: compute it there once for all workers, by "
            f"run.epoch_begin(lambda: ...), and make {root} with the result"
        )
    if owners and _is_part_of_module(difference) and sources.is_changed_by_its_class(difference.name, owners):
        return (
            f"what a forward pass changes belongs to the model that prepare() gets: "
            f'torch.nn.ModuleDict({{"model": model, "{root}": {root}}})'
        )
    if node.kind is Kind.MODULE or (owners and _is_part_of_module(difference)):
        return f'register it before prepare(): run.register("{root}", {root})'
    if owners and owners[-1].endswith("DataLoaderIter"):
        return f"begin it anew in each epoch: {root} = iter(...), of the same loader"
    if node.kind is Kind.ITERATOR and node.type == "count":
        return f"take run.steps_done in its place, or count in state = run.state({key}=0)"
    if node.kind is Kind.ITERATOR and node.type in ("generator", "accumulate", "map", "starmap"):
        return f"keep with the job what the iterator computes, in place of it: state = run.state({key}=...)"
    if re.match(r"\w+\.param_groups\b", difference.name):
        return f"give it to prepare(), and what it trains within the model: run.prepare(model, (optimizer, {root}), …)"
    if node.kind is Kind.LIBRARY or any(
        part.kind is Kind.OBJECT for part in node.parts.values() if node.kind is Kind.CONTAINER
    ):
        return f"keep the numbers and arrays that it contains with the job, and make it from them: state = run.state({key}=...)"
    if node.kind is Kind.ITERATOR:
        return (
            "keep its place: state = run.state(position=0), and take items[state.position % len(items)] in place of it"
        )
    if "partial" in owners:  # an argument that `functools.partial` binds
        name = re.search(r"\['(\w+)'\]$", difference.name)
        return f"bind what the job keeps in its place: run.state({name[1] if name else root}=...)"
    initial = _initial(difference, holder, sources)
    by_method = difference.in_model and not sources.is_changed_in_loop(difference.name, owners)
    if by_method and (value := _as_tensor(difference, initial)):
        return f'make it a buffer, which the job carries with the model: self.register_buffer("{key}", {value})'
    if _is_of_a_batch(difference, batch_size) and not is_part(holder, sources.saved):
        return (
            f"each virtual worker has its own: run.per_virtual_worker({key}={None if initial == holder else initial})"
        )
    if node.kind in (Kind.OBJECT, Kind.MODEL, Kind.DATA):
        if holder != root and "NoneType" in [each.type for each in (difference.ones, difference.others) if each]:
            return (  # an object that its class keeps
                f"make it before prepare(), give it state_dict() and load_state_dict(), and register it: "
                f'run.register("{key}", {holder})'
            )
        line = f"state = run.state({root}={root}), or " if node.kind is Kind.OBJECT and not node.is_class else ""
        return (
            f"keep it with the job: {line}give it state_dict() and load_state_dict(), and register it before prepare(): "
            f'run.register("{root}", {root})'
        )
    line = f"run.state({key}={initial})"
    if (whole := _object(difference, sources)) is not None:
        line += f", or with its object: run.state({_key(whole)}={whole})"
    if difference.in_data:
        return (
            f"derive it from the epoch in the data set's set_epoch(epoch), which its loader processes call, too, or register it: "
            f"{line}"
        )
    if is_part(holder, sources.saved) and sources.follows_from_a_batch(difference.name, owners):
        return f"register it: {line}, and {AVERAGED}"
    return f"register it: {line}"


def _shown(node: Node | None) -> str:
    return "not there" if node is None else node.shown or f"a {node.type}"


def _initial(difference: Difference, holder: str, sources: Sources) -> str:
    """Return the expression of the initial value, if it can be written; else the variable itself."""
    owners = difference.owners[: holder.count(".")]
    if (written := sources.initial(holder, owners)) is not None:
        return written
    for node in (difference.others, difference.ones):
        if node is not None and node.kind is Kind.PLAIN and holder == difference.name and node.type in _WRITTEN:
            return f'float("{node.shown}")' if node.shown in ("inf", "-inf", "nan") else node.shown
    return sources.initial(holder, owners, in_epochs=True) or ("[]" if "(" in holder else holder)


_WRITTEN = frozenset({"NoneType", "bool", "int", "float", "str"})


def _as_tensor(difference: Difference, initial: str) -> str:
    """Return the expression of a tensor with the initial value of a number or tensor; "" for other values, and for one
    that the first loop body makes.
    """
    kinds = {node.kind for node in (difference.ones, difference.others) if node is not None and node.type != "NoneType"}
    if initial == "None" or kinds - {Kind.TENSOR, Kind.PLAIN} or difference.node.type in ("str", "bool"):
        return ""
    return initial if Kind.TENSOR in kinds else f"torch.tensor({initial})"


def _object(difference: Difference, sources: Sources) -> str | None:
    """Return the object of a class of the script's own of which the value is an attribute, as the script names it before the
    loop. None: there is none, or it is the object whose method contains the loop, which has the model and the run, too.
    """
    holder, _, attribute = difference.name.rpartition(".")
    own = difference.holders[-1:] == (Kind.OBJECT,) and sources.has_class(difference.owners[-1])
    own = own and holder != "self" and not any(map(is_function_type, difference.owners))
    return holder if own and all(map(str.isidentifier, (*holder.split("."), attribute))) else None


def _is_hook(difference: Difference) -> bool:
    """Return whether the value is a hook of a module or an optimizer, or only one of the two workers has some of its hooks."""
    one, other = ({} if node is None else node.parts for node in (difference.ones, difference.others))
    added = (name for name in one.keys() ^ other.keys())
    return difference.node.type == "RemovableHandle" or any(
        re.search(r"_hooks\[\d+\]$", name) for name in (difference.name, *added)
    )


def _is_part_of_module(difference: Difference) -> bool:
    """Return whether the value is a parameter or a buffer of a module."""
    return difference.node.kind is Kind.TENSOR and difference.in_module


def _is_of_a_batch(difference: Difference, batch_size: int | None) -> bool:
    """Return whether the value resembles a recurrent network's hidden state: None before the first batch, or as long as
    a batch.
    """
    nodes = [node for node in (difference.ones, difference.others) if node is not None]
    if any(node.type.lower().endswith("dict") for node in nodes):
        return False  # tensors by name, such as a copy of the weights
    shapes = [node.shape for node in nodes if node.shape is not None]
    from_nothing = any(node.type == "NoneType" for node in nodes)
    leading = [shape[: 2 if len(shape) == 3 else 1] for shape in shapes]  # layers may come first
    return any(from_nothing or ((batch_size or 0) > 1 and batch_size in each) for each in leading)
