"""Training loops that keep a value which a joining worker does not have. Each returns its last state."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from training_cases import EPOCHS, Points, ended, network, prepared

from elasticd.worker.comparison import crosscheck
from elasticd.worker.run import Run


def look_in_each_step() -> None:
    """As where steps take long: otherwise a look is due after a time, and these steps take milliseconds."""
    crosscheck.SHARE = crosscheck.SHARE_OF_EPOCH = 0


def keeps_nothing(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


class Cached(Points):
    """Caches the samples that it has read, and changes them at random each time."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index not in self.cache:
            self.cache[index] = self.x[index], self.y[index]
        x, y = self.cache[index]
        return x + 0.1 * torch.randn(12), y


def dataset_that_caches(run: Run) -> list[Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, Cached(), 5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def counts_for_a_log(run: Run) -> list[Any]:
    """A sum of losses, on which no gradient depends."""
    model, optimizer, batches = prepared(run)
    total = 0.0
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    assert total > 0  # a value that nothing reads raises no remark
    return ended(run, model)


def says_that_it_counts(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    total = 0.0
    run.local("total")
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return ended(run, model)


def counter(run: Run) -> list[Any]:
    """A curriculum by a counter of loop bodies."""
    model, optimizer, batches = prepared(run)
    global_step = 0
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y) * min(1.0, global_step / 60)
            loss.backward()
            optimizer.step()
            if loss.isfinite():
                global_step += 1
    return ended(run, model)


def counter_beside_evaluations(run: Run) -> list[Any]:
    """A function evaluates after each step, also after the one in which newcomers are refused."""
    global_step = 0
    model, optimizer, batches = prepared(run)

    def summed(batch: Any) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    @run.every(steps=1)
    def evaluate() -> None:
        for _ in range(2):
            run.evaluate(summed, Points(), batch_size=5)

    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y) * min(1.0, global_step / 60)
            loss.backward()
            optimizer.step()
            if loss.isfinite():
                global_step += 1
    return ended(run, model)


def loss_from_a_step_on(run: Run) -> list[Any]:
    """A second loss that begins at a step far behind the job's end, by a counter of loop bodies."""
    model, optimizer, batches = prepared(run)
    global_step = 0
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            weight = 0.0 if global_step < 10_000 else 1.0
            loss = functional.cross_entropy(model(x), y) + weight * model(x).square().mean()
            loss.backward()
            optimizer.step()
            if loss.isfinite():
                global_step += 1
    return ended(run, model)


def memory_from_an_epoch_on(run: Run) -> list[Any]:
    """As SwAV's queue: filled from the start, read from an epoch on that the job never reaches."""
    model, optimizer, batches = prepared(run)
    queue = torch.zeros(20, 3)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            scores = model(x)
            loss = functional.cross_entropy(scores, y)
            if epoch >= 15:
                loss = loss + (scores @ queue.T).logsumexp(1).mean()
            loss.backward()
            optimizer.step()
            queue[len(x) :] = queue[: -len(x)].clone()
            queue[: len(x)] = scores.detach()
    return ended(run, model)


def cache_and_scratch_memory(run: Run) -> list[Any]:
    """Correct, although the loss is computed from values that differ on a new worker."""
    model, optimizer, batches = prepared(run)
    cache: dict[int, float] = {}
    captured: dict[str, torch.Tensor] = {}
    scratch = torch.zeros(5, 12)
    model.register_forward_hook(lambda module, inputs, output: captured.__setitem__("scores", output))
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            key = int(y[0])
            if key not in cache:
                cache[key] = 1.0 + key / 8
            scratch[: len(x)].copy_(x)
            model(scratch[: len(x)])
            (functional.cross_entropy(captured["scores"], y) * cache[key]).backward()
            optimizer.step()
    return ended(run, model)


class Weighed(Points):
    """Has weights of its samples, which the loop changes."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.ones(len(self.x))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(index)
        return x * self.weights[index], y


def changes_the_dataset_later(run: Run) -> list[Any]:
    """In each worker's copy, for the virtual workers that it hosts; few samples depend on it."""
    look_in_each_step()
    data, model = Weighed(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, data, 5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.steps_done >= 7:
                data.weights[run.virtual_worker] *= 0.5
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


class Featured(Points):
    """Computes features, or has those that the loop has put down for it."""

    def __init__(self) -> None:
        super().__init__()
        self.features: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features.get(index, 2 * self.x[index]), self.y[index]


def fills_a_cache_of_the_dataset(run: Run) -> list[Any]:
    """Correct: entries follow from their keys, whichever worker makes them."""
    look_in_each_step()
    data, model = Featured(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, data, 5)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            if epoch >= 2:
                index = 8 * run.virtual_worker + run.steps_done % 8
                data.features[index] = 2 * data.x[index]
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def averages_from_an_epoch_on(run: Run) -> list[Any]:
    """As an average of weights by hand, which is saved."""
    look_in_each_step()
    model, optimizer, batches = prepared(run)
    average, count = None, 0
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if epoch >= 2:
                last = next(model.parameters()).detach().clone()
                average = last if average is None else (count * average + last) / (count + 1)
                count += 1
    run.save({"average": average, "count": count}, "average.pt")
    return ended(run, model)


def moving_baseline(run: Run) -> list[Any]:
    """As REINFORCE with a baseline: the advantage is a reward minus a mean of earlier ones."""
    model, optimizer, batches = prepared(run)
    baseline = 0.0
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            reward = x.mean().item()
            (functional.cross_entropy(model(x), y) * (1.0 + reward - baseline)).backward()
            optimizer.step()
            baseline = 0.9 * baseline + 0.1 * reward
    return ended(run, model)


class Baseline:
    def __init__(self) -> None:
        self.mean = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mean = state["mean"]

    def learn(self, reward: float) -> None:
        self.mean = 0.9 * self.mean + 0.1 * reward


class HiddenBaseline(Baseline):
    """Its source does not show which attribute changes."""

    def learn(self, reward: float) -> None:
        vars(self)["".join(("me", "an"))] = 0.9 * self.mean + 0.1 * reward


def registered_baseline(run: Run, kind: type[Baseline] = Baseline) -> list[Any]:
    """The same in an object that is registered, so that new workers begin with it."""
    baseline = kind()
    run.register("baseline", baseline)
    model, optimizer, batches = prepared(run)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            reward = x.mean().item()
            (functional.cross_entropy(model(x), y) * (1.0 + reward - baseline.mean)).backward()
            optimizer.step()
            baseline.learn(reward)
    return ended(run, model)


def hidden_registered_baseline(run: Run) -> list[Any]:
    return registered_baseline(run, HiddenBaseline)


def baseline_in_some_steps(run: Run) -> list[Any]:
    """As StyleGAN2's penalty towards a mean of path lengths: made and used in each fifth step only."""
    look_in_each_step()
    model, optimizer, batches = prepared(run)
    mean = None
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            if run.steps_done % 5 == 4:
                length = model(x).square().mean()
                loss = loss if mean is None else loss + (length - mean).square()
                mean = length.item() if mean is None else 0.9 * mean + 0.1 * length.item()
            loss.backward()
            optimizer.step()
    return ended(run, model)


class WarmUp:
    """A warm-up that may start again, in a way that no statement of the loop shows."""

    def __init__(self) -> None:
        self.taken = 0

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]


def counter_that_a_body_sets_back(run: Run) -> list[Any]:
    """A counter of bodies, until one batch of one worker sets it back."""
    model, optimizer, batches = prepared(run)
    warm_up = WarmUp()
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            (functional.cross_entropy(model(x), y) / (1 + 0.1 * warm_up.taken)).backward()
            optimizer.step()
            if run.steps_done == 12 and x.sum() > 0:
                warm_up.reset()
            warm_up.taken += 1
    return ended(run, model)


class Anchor:
    def __init__(self) -> None:
        self.point: torch.Tensor | None = None
        self.points: list[torch.Tensor] = []


def anchor_from_some_batches(run: Run) -> list[Any]:
    """An attribute that bodies bind if their batch is an unusual one; the loss reads it in all later ones."""
    look_in_each_step()
    model, optimizer, batches = prepared(run)
    anchor = Anchor()
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            output = model(x)
            loss = functional.cross_entropy(output, y)
            if anchor.point is not None:
                loss = loss + (output.mean(0) - anchor.point).square().sum()
            loss.backward()
            optimizer.step()
            if run.steps_done == 14 and x.sum() > 0:
                anchor.point = output.mean(0).detach()
    return ended(run, model)


def points_from_some_batches(run: Run) -> list[Any]:
    """The same in a list, which the batch clears before."""
    look_in_each_step()
    model, optimizer, batches = prepared(run)
    anchor = Anchor()
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            output = model(x)
            loss = functional.cross_entropy(output, y)
            for point in anchor.points:
                loss = loss + (output.mean(0) - point).square().sum()
            loss.backward()
            optimizer.step()
            if run.steps_done == 14 and x.sum() > 0:
                anchor.points.clear()
                anchor.points.append(output.mean(0).detach())
    return ended(run, model)


def flag_from_correct_answers(run: Run) -> list[Any]:
    """A function trains an epoch and returns the number of correct answers, from which the next epoch's loss follows."""
    model, optimizer, batches = prepared(run)

    def train_epoch(scale: float) -> int:
        correct = 0
        for x, y in batches:
            output = model(x)
            (scale * functional.cross_entropy(output, y)).backward()
            optimizer.step()
            correct += int((output.argmax(1) == y).sum())
        return correct

    easy = False
    for _ in run.epochs(EPOCHS):
        easy = train_epoch(0.3 if easy else 1.0) > 0
    return ended(run, model)


def counts_in_the_evaluation(run: Run) -> list[Any]:
    """A function of `run.evaluate` that counts by itself, and a rate that follows from the count."""
    model, optimizer, batches = prepared(run)
    correct = 0

    def score(batch: Any) -> float:
        nonlocal correct
        correct += int((model(batch[0]).argmax(1) == batch[1]).sum())
        return 0.0

    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        correct = 0
        run.evaluate(score, Points(), batch_size=8)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 if correct > 0 else 0.01
    return ended(run, model)


def hidden_state(run: Run) -> list[Any]:
    """As truncated backpropagation: the state after the last batch is an input of the next one."""
    model, optimizer, batches = prepared(run)
    hidden = torch.zeros(3)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            scores = model(x) + hidden
            functional.cross_entropy(scores, y).backward()
            optimizer.step()
            hidden = 0.1 * scores.mean(0).detach()
    return ended(run, model)


def replay(run: Run) -> list[Any]:
    """As DQN: trains old samples along with new ones."""
    model, optimizer, batches = prepared(run)
    buffer: deque[Any] = deque(maxlen=20)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            buffer.extend(zip(x, y, strict=True))
            old_x, old_y = (torch.stack(each) for each in zip(*list(buffer)[:5], strict=True))
            (functional.cross_entropy(model(x), y) + functional.cross_entropy(model(old_x), old_y)).backward()
            optimizer.step()
    return ended(run, model)


def frozen(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    teacher = copy.deepcopy(model).eval()

    def predict(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return teacher(x).softmax(-1)

    return predict


def teacher_of_an_epoch(run: Run) -> list[Any]:
    """A function with a copy of the model at each epoch's beginning: a joiner makes it in the middle of an epoch."""
    model, optimizer, batches = prepared(run)
    for _ in run.epochs(EPOCHS):
        teacher = frozen(model)
        for x, y in batches:
            target = teacher(x)
            scores = model(x)
            (functional.cross_entropy(scores, y) + functional.cross_entropy(scores, target)).backward()
            optimizer.step()
    return ended(run, model)


def record_with_two_names(run: Run) -> list[Any]:
    """The best record is an item of the history, too, and is changed there."""
    model, optimizer, batches = prepared(run)
    history: list[dict[str, Any]] = []
    best: dict[str, Any] | None = None
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            weight = 1.0 if best is None else 1.0 + best["weight"]
            (weight * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
        history.append({"weight": 0.01 * epoch})
        if best is not None:
            best["weight"] = 0.0
        best = history[-1]
    return ended(run, model)


def own_generator(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    generator = torch.Generator().manual_seed(7)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            noise = torch.randn(x.shape, generator=generator)
            functional.cross_entropy(model(x + noise), y).backward()
            optimizer.step()
    return ended(run, model)


def switch_in_an_epoch(run: Run) -> list[Any]:
    """A change of behaviour in one epoch that stays."""
    model, optimizer, batches = prepared(run)
    weight = 1.0
    for epoch in run.epochs(EPOCHS):
        if epoch == 0:
            weight = 0.5
        for x, y in batches:
            (weight * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
    return ended(run, model)


def switched_before_it_came(run: Run) -> list[Any]:
    """The same, with the change in an epoch that a later newcomer never sees: it joins in epoch 2."""
    model, optimizer, batches = prepared(run)
    weight = 1.0
    for epoch in run.epochs(EPOCHS):
        if epoch == 1:
            weight = 0.5
        for x, y in batches:
            (weight * functional.cross_entropy(model(x), y)).backward()
            optimizer.step()
    return ended(run, model)


def rate_from_a_counter(run: Run) -> list[Any]:
    """A hyperparameter that is set by hand: bodies are compared."""
    model, optimizer, batches = prepared(run)
    batches_seen = 0
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            optimizer.param_groups[0]["lr"] = 0.05 / (1 + batches_seen // 4)
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if loss.isfinite():
                batches_seen += 1
    return ended(run, model)


def data_that_differ(run: Run) -> list[Any]:
    """The files on a newcomer's server differ."""
    data = Points()
    if run._env is not None and run._env.worker != "w.0":
        data.x = data.x + 1.0
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, data, 5)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def kept(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: values


def labels_of_an_epoch(run: Run) -> list[Any]:
    """Pseudo-labels: other weights change few of them, so one micro-batch may have the same gradient with others."""
    model, optimizer, batches = prepared(run)
    data = Points()
    for _ in run.epochs(EPOCHS):
        with torch.no_grad():
            labels = kept(model(data.x).argmax(1))
        shares: list[float] = []
        for x, y in batches:
            scores = model(x) * (1.0 + 1e-30 * labels().sum())
            functional.cross_entropy(scores, y).backward()
            shares.append(x.mean().item())
            optimizer.step()
    return ended(run, model)


def teacher_and_counter(run: Run) -> list[Any]:
    model, optimizer, batches = prepared(run)
    seen = 0
    for _ in run.epochs(EPOCHS):
        teacher = frozen(model)
        for x, y in batches:
            target = teacher(x)
            functional.cross_entropy(model(x), 0.5 * (target + functional.one_hot(y, 3))).backward()
            optimizer.step()
            seen += len(x)
    return ended(run, model)


# -- saved values


def lbfgs_counts_later_evaluations(run: Run) -> list[Any]:
    """The first evaluation of a step is equal on all workers."""
    model = network()
    raw = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3)
    model, optimizer, batches = run.prepare(model, raw, Points(), 5)
    counted, seen = 0, (-1, 0.0)
    known: set[tuple[int, float]] = set()
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            seen = run.steps_done, x.sum().item()
            again = seen in known

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y) * (1.0 + 0.001 * counted * again)  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)
            known.add(seen)
            counted += again
    return ended(run, model)


def host_counter(run: Run) -> list[Any]:
    """A framework's loop whose step counts its computations."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run.prepare(model, optimizer, Points(), 5)
    position = run.begin(EPOCHS)
    done = 0
    for _ in range(position.epoch, EPOCHS):
        for step in run.steps():
            for x, y in step:
                (functional.cross_entropy(model(x), y) * min(1.0, done / 60)).backward()
                done += 1
    return ended(run, model)


def host_that_keeps_nothing(run: Run) -> list[Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run.prepare(model, optimizer, Points(), 5)
    position = run.begin(EPOCHS)
    for _ in range(position.epoch, EPOCHS):
        for step in run.steps():
            for x, y in step:
                (run.weight * functional.cross_entropy(model(x), y)).backward()
    return ended(run, model)


def the_leader_estimates_in_the_body(run: Run) -> list[Any]:
    """As nanoGPT's loop does on its master, with random batches, before the forward pass, which draws for its dropout."""
    model, optimizer, batches = prepared(run)
    data = Points()
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if run.is_leader:
                with torch.no_grad():
                    model.eval()
                    model(data.x[torch.randint(0, len(data), (4,))])
                    model.train()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


class ByLoss(torch.utils.data.Sampler[int]):
    """Draws samples by the losses of this worker's bodies."""

    def __init__(self, size: int) -> None:
        self.losses = torch.ones(size)

    def __len__(self) -> int:
        return len(self.losses)

    def __iter__(self) -> Any:
        return iter(torch.multinomial(self.losses + 0.01, len(self.losses), replacement=True).tolist())


def sampler_of_own_losses(run: Run) -> list[Any]:
    model, data = network(), Points()
    sampler = ByLoss(len(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, data, 5, sampler=sampler)
    for epoch in run.epochs(EPOCHS):
        for x, y in batches:
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        sampler.losses = torch.arange(1.0, 1.0 + len(sampler)) ** epoch
    return ended(run, model)


def sampler_of_each_body_s_losses(run: Run) -> list[Any]:
    model, data = network(), Points()
    sampler = ByLoss(len(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, data, 5, sampler=sampler)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            sampler.losses[: len(x)] = loss.detach()
    return ended(run, model)


def pool_of_earlier_samples(run: Run) -> list[Any]:
    """As CycleGAN's pool of images: nothing depends on it before it is full."""
    model, optimizer, batches = prepared(run)
    pool: list[torch.Tensor] = []
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if len(pool) > 7 * run.virtual_workers:
                x = (x + pool[-12][: len(x)]) / 2 if len(pool[-12]) >= len(x) else x
            pool.append(x)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def pool_filled_by_another_name(run: Run) -> list[Any]:
    """The same, where the source does not show what fills the pool."""
    model, optimizer, batches = prepared(run)
    pool: list[torch.Tensor] = []
    keep = pool.append
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            if len(pool) > 7 * run.virtual_workers:
                x = (x + pool[-12][: len(x)]) / 2 if len(pool[-12]) >= len(x) else x
            keep(x)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return ended(run, model)


def scale_in_the_update(run: Run) -> list[Any]:
    """A loss scale by hand, which grows with the updates of this process."""
    model = network()
    scale, updates = 4.0, 0

    def unscale() -> None:
        nonlocal scale, updates
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(scale)
        updates += 1
        if updates % 5 == 0:
            scale *= 1.7

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, batches = run.prepare(model, optimizer, Points(), 5, before_update=unscale)
    for _ in run.epochs(EPOCHS):
        for x, y in batches:
            (functional.cross_entropy(model(x), y) * scale).backward()
            optimizer.step()
    return ended(run, model)


def mean_of_an_epochs_bodies(run: Run) -> list[Any]:
    """Code behind the loop over batches divides by the number of the last body."""
    model, optimizer, batches = prepared(run)
    for _ in run.epochs(EPOCHS):
        total = 0.0
        for index, (x, y) in enumerate(batches):  # noqa: B007
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        logging.getLogger("mean").debug(total / index)
    return ended(run, model)
