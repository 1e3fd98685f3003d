"""Scripts of the corpus: the expected verdict, the name that a message must contain, and the line that mends the script."""

from __future__ import annotations

import ast
import enum
import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "scripts"


class Expected(enum.Enum):
    """equal: the same bits in every history, and no message. found: refused, not grown, or named. either: any verdict but other
    bits without a message."""

    EQUAL = "equal"
    FOUND = "found"
    EITHER = "either"


EQUAL, FOUND, EITHER = Expected.EQUAL, Expected.FOUND, Expected.EITHER


@dataclass(frozen=True)
class Script:
    """One script. The first line of its docstring names the idiom that it represents."""

    name: str
    expected: Expected
    variable: str = ""  # name that a message must contain
    line: str = ""  # kind of line that mends the script
    fix: tuple[tuple[str, str], ...] = ()  # replacements in the source that add that line
    fresh: bool = False  # its result depends on the interpreter's start

    @property
    def idiom(self) -> str:
        text = ast.get_docstring(ast.parse(self.source()))
        assert text, f"{self.name} does not say what it stands for"
        return text.splitlines()[0]

    def source(self, fixed: bool = False) -> str:
        """Return the source. Raises ValueError if it lacks a text that the fix replaces."""
        text = (SOURCES / f"{self.name}.py").read_text()
        for old, new in self.fix if fixed else ():
            if old not in text:
                raise ValueError(f"{self.name}.py has no {old!r}")
            text = text.replace(old, new)
        return text

    def write(self, directory: Path, fixed: bool) -> None:
        """Write the script, and the modules that scripts share, into a working directory."""
        for path in SOURCES.glob("shared_*.py"):
            shutil.copy(path, directory)
        (directory / f"{self.name}.py").write_text(self.source(fixed))


_JOIN = "run = elastic.join()\n"
_PREPARE = "model, optimizer, batches = run.prepare("

SCRIPTS: tuple[Script, ...] = (
    Script("plain_classifier", EQUAL),
    Script(
        "step_counter_curriculum",
        FOUND,
        "global_step",
        "state = run.state(global_step=0)",
        (
            ("global_step = 0\n", "state = run.state(global_step=0)\n"),
            ("min(1.0, global_step", "min(1.0, state.global_step"),
            ("        global_step += 1", "        state.global_step += 1"),
        ),
    ),
    Script(
        "step_counter_warmup_by_hand",
        FOUND,
        "step",
        "state = run.state(step=0)",
        (
            ("\nstep = 0\n", "\nstate = run.state(step=0)\n"),
            ("= rate(step)", "= rate(state.step)"),
            ("        step += 1", "        state.step += 1"),
        ),
    ),
    Script(
        "gumbel_temperature",
        FOUND,
        "temperature",
        "state = run.state(temperature=1.0)",
        (
            ("\ntemperature = 1.0\n", "\nstate = run.state(temperature=1.0)\n"),
            ("tau=temperature", "tau=state.temperature"),
            ("        temperature = max(0.3, temperature", "        state.temperature = max(0.3, state.temperature"),
        ),
    ),
    Script(
        "vae_kl_annealing",
        FOUND,
        "annealer.current",
        "state = run.state(current=0)",
        (
            ("        self.current = 0\n", "        self.state = run.state(current=0)\n"),
            ("self.current / ", "self.state.current / "),
            ("self.current += 1", "self.state.current += 1"),
            ("annealer = Annealer(80)\nrun = elastic.join()\n", "run = elastic.join()\nannealer = Annealer(80)\n"),
        ),
    ),
    Script(
        "mixup_alpha_schedule",
        FOUND,
        "seen",
        "state = run.state(seen=0)",
        (
            ("\nseen = 0\n", "\nstate = run.state(seen=0)\n"),
            ("min(seen, ", "min(state.seen, "),
            ("        seen += 1", "        state.seen += 1"),
        ),
    ),
    Script("counter_for_logging", EQUAL),
    Script(
        "ema_list",
        FOUND,
        "shadow",
        "run.register and after_update=",
        (
            (
                "\nshadow = [p.detach().clone() for p in model.parameters()]\n",
                "\nstate = run.state(shadow=[p.detach().clone() for p in model.parameters()])\n",
            ),
            ("zip(shadow", "zip(state.shadow"),
            ('{"ema": shadow}', '{"ema": state.shadow}'),
        ),
    ),
    Script(
        "ema_dict",
        FOUND,
        "shadow",
        "run.register and after_update=",
        (
            ("shadow = {name: p.detach().clone() for name, p in model.named_parameters()}\n", ""),
            (
                _JOIN,
                "shadow = {name: p.detach().clone() for name, p in model.named_parameters()}\n\n\n"
                "def update():\n    for name, p in model.named_parameters():\n"
                "        shadow[name] = 0.95 * shadow[name] + 0.05 * p.detach()\n\n\n"
                + _JOIN
                + 'run.register("shadow", lambda: dict(shadow), shadow.update)\n',
            ),
            ("batch_size=4)", "batch_size=4, after_update=update)"),
            (
                "        for name, p in model.named_parameters():\n"
                "            shadow[name] = 0.95 * shadow[name] + 0.05 * p.detach()\nrun.save",
                "run.save",
            ),
        ),
    ),
    Script(
        "ema_module_deepcopy",
        FOUND,
        "ema",
        "run.register and after_update=",
        (
            (
                _JOIN,
                "\n\ndef update():\n    with torch.no_grad():\n        for average, p in zip(ema.parameters(), model.parameters()):\n            average.mul_(0.95).add_(p, alpha=0.05)\n\n\n"
                + _JOIN
                + 'run.register("ema", ema)\n',
            ),
            ("batch_size=4)", "batch_size=4, after_update=update)"),
            (
                "        with torch.no_grad():\n            for average, p in zip(ema.parameters(), model.parameters()):\n                average.mul_(0.95).add_(p, alpha=0.05)\nrun.save",
                "run.save",
            ),
        ),
    ),
    Script(
        "ema_class_num_updates",
        FOUND,
        "ema",
        "state = run.state(ema=…) and after_update=",
        (
            (
                "        self.num_updates = 0\n        self.shadow_params = [p.clone().detach() for p in parameters]\n",
                "        self.state = run.state(num_updates=0, shadow_params=[p.clone().detach() for p in parameters])\n",
            ),
            ("self.num_updates", "self.state.num_updates"),
            ("self.shadow_params", "self.state.shadow_params"),
        ),
    ),
    Script("averaged_model", EQUAL),
    Script("swa_from_epoch", EQUAL),
    Script(
        "reinforce_moving_baseline",
        FOUND,
        "baseline",
        "state = run.state(baseline=None)",
        (
            ("\nbaseline = None\n", "\nstate = run.state(baseline=None)\n"),
            (
                "        baseline = rewards.mean().item() if baseline is None else 0.9 * baseline",
                "        state.baseline = rewards.mean().item() if state.baseline is None else 0.9 * state.baseline",
            ),
            ("rewards - baseline", "rewards - state.baseline"),
        ),
    ),
    Script(
        "running_reward",
        FOUND,
        "running_reward",
        "state = run.state(running_reward=10.0)",
        (
            ("running_reward", "state.running_reward"),
            ("state.running_reward = 10.0", "state = run.state(running_reward=10.0)"),
            ("`state.running_reward`", "`running_reward`"),
        ),
    ),
    Script(
        "observation_normalizer",
        FOUND,
        "rms",
        "run.state",
        (
            (
                "        self.mean = np.zeros(shape)\n        self.var = np.ones(shape)\n        self.count = 1e-4\n",
                "        self.state = run.state(mean=np.zeros(shape), var=np.ones(shape), count=1e-4)\n",
            ),
            ("self.mean", "self.state.mean"),
            ("self.var", "self.state.var"),
            ("self.count", "self.state.count"),
            ("rms.mean", "rms.state.mean"),
            ("rms.var", "rms.state.var"),
            ("rms = RunningMeanStd(4)\nrun = elastic.join()\n", "run = elastic.join()\nrms = RunningMeanStd(4)\n"),
        ),
    ),
    Script(
        "dqn_replay",
        FOUND,
        "memory",
        "kept = run.state(memory=deque(maxlen=100))",
        (
            (_JOIN, _JOIN + "kept = run.state(memory=memory)\n"),
            ("            memory.append", "            kept.memory.append"),
            ("random.sample(memory, min(8, len(memory)))", "random.sample(kept.memory, min(8, len(kept.memory)))"),
        ),
    ),
    Script(
        "moco_queue_tensor",
        FOUND,
        "queue",
        "state = run.state(queue=…, pointer=0)",
        (
            ("        optimizer.step()\n        places =", "        places ="),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
            (
                "queue = nn.functional.normalize(torch.randn(32, 6), dim=1)\npointer = 0\n",
                "state = run.state(queue=nn.functional.normalize(torch.randn(32, 6), dim=1), pointer=0)\n",
            ),
            ("q @ queue.T", "q @ state.queue.T"),
            ("(pointer + torch", "(state.pointer + torch"),
            ("        queue[places]", "        state.queue[places]"),
            ("        pointer = (pointer +", "        state.pointer = (state.pointer +"),
        ),
    ),
    Script("moco_queue_buffer", EQUAL),
    Script(
        "prioritized_replay",
        FOUND,
        "priorities",
        "state = run.state(priorities=…)",
        (
            ("        optimizer.step()\n        priorities[", "        priorities["),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
            ("priorities", "state.priorities"),
            (
                "state.priorities = np.ones(128)\nrun = elastic.join()\n",
                "run = elastic.join()\nstate = run.state(priorities=np.ones(128))\n",
            ),
        ),
    ),
    Script(
        "teacher_each_epoch",
        FOUND,
        "teacher",
        "run.epoch_begin(…)",
        (("teacher = copy.deepcopy(model).eval()", "teacher = run.epoch_begin(lambda: copy.deepcopy(model).eval())"),),
    ),
    Script(
        "mean_teacher",
        FOUND,
        "teacher",
        "run.register and after_update=",
        (
            (
                _JOIN,
                "\n\ndef update():\n    for t, p in zip(teacher.parameters(), model.parameters()):\n        t.data.mul_(0.99).add_(p.data, alpha=0.01)\n\n\n"
                + _JOIN
                + 'run.register("teacher", teacher)\n',
            ),
            ("batch_size=4)", "batch_size=4, after_update=update)"),
            (
                "        for t, p in zip(teacher.parameters(), model.parameters()):\n            t.data.mul_(0.99).add_(p.data, alpha=0.01)\nrun.save",
                "run.save",
            ),
        ),
    ),
    Script(
        "byol_target_inside",
        FOUND,
        "target",
        "prepare(…, after_update=model.move)",
        (("batch_size=4)", "batch_size=4, after_update=model.move)"), ("        model.move()\n", "")),
    ),
    Script("distillation_fixed_teacher", EQUAL),
    Script(
        "pseudo_labels_each_epoch",
        FOUND,
        "pseudo",
        "pseudo = run.epoch_begin(…)",
        (
            (
                "    with torch.no_grad():\n        pseudo = model(x).argmax(1)\n",
                "    pseudo = run.epoch_begin(lambda: model(x).argmax(1))\n",
            ),
        ),
    ),
    Script(
        "kmeans_each_epoch",
        FOUND,
        "centres",
        "centres, label = run.epoch_begin(…)",
        (
            (
                "    with torch.no_grad():\n        centres, label = kmeans(model(x), 5)\n",
                "    centres, label = run.epoch_begin(lambda: kmeans(model(x).detach(), 5))\n",
            ),
        ),
    ),
    Script(
        "ppo_old_policy",
        FOUND,
        "actions",
        "run.epoch_begin(…)",
        (
            (
                _JOIN,
                "\n\ndef collect():\n    with torch.no_grad():\n        old = torch.distributions.Categorical(logits=model(x))\n        actions = old.sample()\n        old_log = old.log_prob(actions)\n        rewards = (actions == x[:, :3].argmax(1)).float()\n        return actions, old_log, (rewards - rewards.mean()) / (rewards.std() + 1e-8)\n\n\n"
                + _JOIN,
            ),
            (
                "    with torch.no_grad():\n        old = torch.distributions.Categorical(logits=model(x))\n        actions = old.sample()\n        old_log = old.log_prob(actions)\n        rewards = (actions == x[:, :3].argmax(1)).float()\n        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-8)\n",
                "    actions, old_log, advantage = run.epoch_begin(collect)\n",
            ),
        ),
    ),
    Script(
        "ppo_old_policy_module",
        FOUND,
        "policy_old",
        "run.epoch_begin(…)",
        (
            ("policy_old = nn.Linear(6, 3)\n", ""),
            (
                "policy_old.load_state_dict(model.state_dict())",
                "policy_old = run.epoch_begin(lambda: copy.deepcopy(model))",
            ),
            ("import torch\nfrom", "import copy\n\nimport torch\nfrom"),
        ),
    ),
    Script(
        "rnn_stateful_hidden",
        FOUND,
        "hidden",
        "state = run.per_virtual_worker(hidden=…)",
        (
            ("\nhidden = torch.zeros(1, 4, 8)\n", "\nstate = run.per_virtual_worker(hidden=torch.zeros(1, 4, 8))\n"),
            (
                "        hidden = hidden.detach()\n        output, hidden = model(tokens[:, :-1], hidden)\n",
                "        output, hidden = model(tokens[:, :-1], state.hidden)\n        state.hidden = hidden.detach()\n",
            ),
        ),
    ),
    Script(
        "tbptt_state_in_module",
        FOUND,
        "last",
        "state = run.per_virtual_worker(last=…)",
        (
            ("        self.last = torch.zeros(4, 8)\n", ""),
            ("h = self.last.detach()", "h = own.last"),
            ("self.last = h.detach()", "own.last = h.detach()"),
            ("run = elastic.join()\n", "run = elastic.join()\nown = run.per_virtual_worker(last=torch.zeros(4, 8))\n"),
        ),
    ),
    Script("rnn_fresh_hidden", EQUAL),
    Script(
        "diffusion_own_generator",
        FOUND,
        "generator",
        "state = run.state(generator=generator)",
        (
            (_JOIN, _JOIN + "state = run.state(generator=generator)\n"),
            ("generator=generator)\n        n", "generator=state.generator)\n        n"),
        ),
    ),
    Script(
        "numpy_rng_augmentation",
        FOUND,
        "rng",
        "state = run.state(rng=rng)",
        (
            (_JOIN, _JOIN + "state = run.state(rng=rng)\n"),
            ("if rng.random", "if state.rng.random"),
            ("(rng.normal", "(state.rng.normal"),
        ),
    ),
    Script(
        "python_rng_negatives",
        FOUND,
        "sampler",
        "state = run.state(sampler=sampler)",
        ((_JOIN, _JOIN + "state = run.state(sampler=sampler)\n"), ("[sampler.randrange", "[state.sampler.randrange")),
    ),
    Script("global_generators", EQUAL),
    Script(
        "dataset_difficulty",
        FOUND,
        "difficulty",
        "run.state, or run.steps_done",
        (
            ("        self.difficulty = 0.0\n", ""),
            ("self.x[i] + self.difficulty", "self.x[i]"),
            ("model(inputs)", "model(inputs + min(1.0, 0.01 * run.steps_done))"),
            ("        dataset.difficulty = min(1.0, dataset.difficulty + 0.01)\n", ""),
        ),
    ),
    Script(
        "dataset_difficulty_workers",
        FOUND,
        "difficulty",
        "a method set_epoch(epoch)",
        (
            (
                "    def __len__",
                "    def set_epoch(self, epoch):\n        self.difficulty = 0.3 * epoch\n\n    def __len__",
            ),
            ("        dataset.difficulty = 0.3 * epoch\n", ""),
        ),
    ),
    Script("unfreeze_at_epoch", EITHER, "requires_grad", "if epoch >= 1:", (("epoch == 1", "epoch >= 1"),)),
    Script(
        "loss_weight_at_epoch",
        FOUND,
        "auxiliary_weight",
        "state = run.state(auxiliary_weight=0.0)",
        (("    if epoch == 1:\n", "    if epoch >= 1:\n"),),
    ),
    Script("lr_at_epoch", EQUAL),
    Script("augmentation_off_at_epoch", FOUND, "mosaic", "if epoch >= 1:", (("epoch == 1", "epoch >= 1"),)),
    Script(
        "classes_from_set",
        EITHER,
        "classes",
        "sorted(set(names))",
        (("list(set(names))", "sorted(set(names))"),),
        fresh=True,
    ),
    Script(
        "vocabulary_from_set",
        EITHER,
        "vocabulary",
        "sorted(set(text))",
        (("enumerate(set(text))", "enumerate(sorted(set(text)))"),),
        fresh=True,
    ),
    Script(
        "labels_by_listdir",
        EITHER,
        "label_of",
        "sorted(os.listdir(…))",
        (('os.listdir("images")', 'sorted(os.listdir("images"))'),),
    ),
    Script(
        "shuffled_before_join",
        EITHER,
        "samples",
        "random.Random(0).shuffle(samples)",
        (("random.shuffle(samples)", "random.Random(0).shuffle(samples)"),),
        fresh=True,
    ),
    # Not repeatable with one worker: `torch.seed()` draws another split in each process. Workers with another split do not join.
    Script(
        "random_split_before_join",
        EITHER,
        "train_set",
        "random_split(…, generator=…)",
        (("[128, 32])", "[128, 32], generator=torch.Generator().manual_seed(0))"),),
        fresh=True,
    ),
    Script(
        "early_stopping_local_loss",
        EITHER,
        "best",
        "run.mean and run.state",
        (
            ('\nbest, bad = float("inf"), 0\n', '\nstate = run.state(best=float("inf"), bad=0)\n'),
            ("    losses = []\n", ""),
            ("        loss.backward()\n", "        run.mean(loss=loss)\n        loss.backward()\n"),
            ("        losses.append(loss.item())\n", ""),
            ("sum(losses) / len(losses)", 'run.means["loss"]'),
            (
                "< 0.9 * best:\n        best, bad = mean, 0",
                "< 0.9 * state.best:\n        state.best, state.bad = mean, 0",
            ),
            ("        bad += 1", "        state.bad += 1"),
            ("if bad >= 2", "if state.bad >= 2"),
        ),
    ),
    Script(
        "best_checkpoint_local_loss",
        FOUND,
        "best",
        "run.mean and run.state",
        (
            ('\nbest = float("inf")\n', '\nstate = run.state(best=float("inf"))\n'),
            ("    total, count = 0.0, 0\n", ""),
            ("        loss.backward()\n", "        run.mean(loss=loss)\n        loss.backward()\n"),
            ("        total, count = total + loss.item(), count + 1\n", ""),
            (
                "    if total / count < best:\n        best = total / count\n",
                '    if run.means["loss"] < state.best:\n        state.best = run.means["loss"]\n',
            ),
            ('"loss": best', '"loss": state.best'),
        ),
    ),
    Script(
        "gradnorm_weights",
        FOUND,
        "weights",
        "state = run.state(initial=None, weights=…)",
        (
            ("        optimizer.step()\n        ratio =", "        ratio ="),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
            ("initial = None\nweights = torch.ones(2)\n", "state = run.state(initial=None, weights=torch.ones(2))\n"),
            (
                "        if initial is None:\n            initial =",
                "        if state.initial is None:\n            state.initial =",
            ),
            ("        (weights * losses)", "        (state.weights * losses)"),
            ("losses.detach() / initial", "losses.detach() / state.initial"),
            ("        weights = 0.9 * weights", "        state.weights = 0.9 * state.weights"),
        ),
    ),
    Script(
        "focal_class_counts",
        FOUND,
        "counts",
        "a buffer of a module that the run has",
        (
            ("        self.counts = torch.ones(classes)", "        self.state = run.state(counts=torch.ones(classes))"),
            ("self.counts", "self.state.counts"),
            ("criterion = BalancedFocal(2)\n", ""),
            ("run = elastic.join()\n", "run = elastic.join()\ncriterion = BalancedFocal(2)\n"),
        ),
    ),
    Script("uncertainty_weights", EQUAL),
    Script(
        "label_smoothing_schedule",
        FOUND,
        "label_smoothing",
        "from run.steps_done",
        (
            ("        criterion.label_smoothing = max(0.0, criterion.label_smoothing - 0.002)\n", ""),
            (
                "        criterion(model",
                "        criterion.label_smoothing = max(0.0, 0.2 - 0.008 * run.steps_done)\n        criterion(model",
            ),
        ),
    ),
    Script(
        "sam_two_steps",
        FOUND,
        "Sam",
        "the old values copied back before optimizer.step()",
        (
            ("    def first_step(self):", "    def up(self):"),
            ("    def second_step(self):", "    def back(self):"),
            (
                'self.state[p]["moved"] = p.grad * (0.05 / (norm + 1e-12))\n                p.data.add_(self.state[p]["moved"])',
                "moved[p] = p.data.clone()\n                p.data.add_(p.grad * (0.05 / (norm + 1e-12)))",
            ),
            ('p.data.sub_(self.state[p]["moved"])\n        self.step()', "p.data.copy_(moved[p])\n        self.step()"),
            ("class Sam", "moved = {}\n\n\nclass Sam"),
            ("optimizer.first_step()", "optimizer.up()"),
            ("optimizer.second_step()", "optimizer.back()"),
        ),
    ),
    Script(
        "lars_state_outside",
        FOUND,
        "momentum",
        "optimizer.state",
        (
            ('        self.momentum = [torch.zeros_like(p) for g in self.param_groups for p in g["params"]]\n', ""),
            (
                "for p, m in zip(parameters, self.momentum):\n",
                'for p in parameters:\n            m = self.state[p].setdefault("momentum", torch.zeros_like(p))\n',
            ),
        ),
    ),
    Script("lookahead_list", FOUND, "slow", "optimizer.state"),
    Script("muon_like", EQUAL),
    Script("schedule_free", EQUAL),
    Script("gradient_noise", FOUND, "t", "before_update="),
    Script("accumulation_by_hand", FOUND, "optimizer.step", "virtual workers"),
    Script("amp_grad_scaler", EQUAL),
    Script("clip_elastic", EQUAL),
    Script(
        "clip_in_body",
        FOUND,
        "run.clip",
        "run.clip(1.0)",
        (("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "run.clip(1.0)"),),
    ),
    Script("lora_in_mid_run", EQUAL),
    Script("pruning_masks", FOUND, "mask", "run.epoch_begin(…)"),
    Script("pruning_buffers", EQUAL),
    Script(
        "observer_attributes",
        FOUND,
        "low",
        "register_buffer",
        (
            (
                "        self.low = 0.0\n        self.high = 0.0\n",
                '        self.register_buffer("low", torch.zeros(()))\n        self.register_buffer("high", torch.zeros(()))\n',
            ),
            ("h.min().item()", "h.detach().min()"),
            ("h.max().item()", "h.detach().max()"),
            ("max(self.high - self.low, 1e-3)", "(self.high - self.low).clamp(min=1e-3)"),
        ),
    ),
    Script("observer_buffers", EQUAL),
    Script(
        "wgan_critic_steps",
        FOUND,
        "critic_steps",
        "state = run.state(critic_steps=0)",
        (
            ("critic_steps = 0\n", "state = run.state(critic_steps=0)\n"),
            ("            critic_steps += 1", "            state.critic_steps += 1"),
            ("if critic_steps %", "if state.critic_steps %"),
        ),
    ),
    Script("gan_updates", EQUAL),
    Script(
        "cyclegan_image_pool",
        FOUND,
        "pool",
        "state = run.state(images=[])",
        (
            ("self.size, self.images = size, []", "self.size = size\n        self.state = run.state(images=[])"),
            ("self.images", "self.state.images"),
            ("pool = ImagePool(20)\nrun = elastic.join()\n", "run = elastic.join()\npool = ImagePool(20)\n"),
        ),
    ),
    Script(
        "memory_bank",
        FOUND,
        "bank",
        "state = run.state(bank=…)",
        (
            ("        optimizer.step()\n        bank[", "        bank["),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
            ("        bank[index] =", "        state.bank[index] ="),
            ("0.5 * bank[index]", "0.5 * state.bank[index]"),
            ("features @ bank.T", "features @ state.bank.T"),
            ("run = elastic.join()\n", "run = elastic.join()\nstate = run.state(bank=bank)\n"),
        ),
    ),
    Script("clip_temperature", EQUAL),
    Script("clip_global_negatives", EQUAL),
    Script(
        "simclr_all_gather",
        FOUND,
        "process group",
        "run.gather and prepare(…, gathers=True)",
        (
            ("    parts = [torch.zeros_like(own) for _ in range(dist.get_world_size())]\n", ""),
            (
                "    dist.all_gather(parts, own)\n    parts[dist.get_rank()] = own\n    return torch.cat(parts)",
                "    return run.gather(own)",
            ),
            ("batch_size=4)", "batch_size=4, gathers=True)"),
        ),
    ),
    Script(
        "world_size_in_loss",
        FOUND,
        "world_size",
        "run.virtual_workers",
        (("run.world_size", "run.virtual_workers"),),
    ),
    Script(
        "sparse_embeddings",
        FOUND,
        "sparse=True",
        "sparse=False, and Adam",
        (("sparse=True)\noptimizer", "sparse=False)\noptimizer"), ("optim.SparseAdam", "optim.Adam")),
    ),
    Script(
        "word2vec_negatives",
        FOUND,
        "position",
        "state = run.state(position=0)",
        (
            ("        self.position = 0\n", "        self.state = run.state(position=0)\n"),
            ("self.position", "self.state.position"),
            ("negatives = Negatives(30)\nrun = elastic.join()\n", "run = elastic.join()\nnegatives = Negatives(30)\n"),
        ),
    ),
    Script(
        "gnn_neighbour_sampling",
        FOUND,
        "sampler",
        "state = run.state(sampler=sampler)",
        ((_JOIN, _JOIN + "state = run.state(sampler=sampler)\n"), ("(sampler.randint", "(state.sampler.randint")),
    ),
    Script("hard_mining", EQUAL),
    Script(
        "loss_aware_sampler",
        FOUND,
        "losses",
        "run.state and run.gather",
        (
            ("    def __init__(self, size):\n        self.losses = torch.ones(size)\n\n", ""),
            ("return len(self.losses)", "return 128"),
            ("self.losses + 0.01, len(self.losses)", "state.weights + 0.01, 128"),
            ("ByLoss(128)", "ByLoss()"),
            (_JOIN, _JOIN + "state = run.state(losses=torch.ones(128), weights=torch.ones(128))\n"),
            (
                "sampler=sampler)\nfor epoch in run.epochs(4):\n",
                "sampler=sampler, gathers=True)\nfor epoch in run.epochs(4):\n    state.weights = state.losses.clone()\n",
            ),
            (
                "        losses.mean()",
                "        state.losses[run.gather(index)] = run.gather(losses.detach(), differentiable=False)\n        losses.mean()",
            ),
            ("        sampler.losses[index] = losses.detach()\n", ""),
        ),
    ),
    Script("class_balanced_sampler", EQUAL),
    Script(
        "plateau_training_loss",
        FOUND,
        "losses",
        "run.mean",
        (
            ("        loss.backward()\n", "        run.mean(loss=loss)\n        loss.backward()\n"),
            ("sum(losses) / len(losses)", 'run.means["loss"]'),
        ),
    ),
    Script("plateau_validation_loss", EQUAL),
    Script(
        "cyclical_lr_by_hand",
        FOUND,
        "iteration",
        "run.steps_done",
        (("        iteration += 1\n", ""), ("(iteration % 20)", "(run.steps_done % 20)")),
    ),
    Script("onecycle_scheduler", EQUAL),
    Script(
        "fixmatch_second_loader",
        FOUND,
        "iterator",
        "samples drawn by run.steps_done",
        (
            ("\niterator = iter(unlabelled)\n", "\n"),
            (
                "        try:\n            free = next(iterator)\n        except StopIteration:\n            iterator = iter(unlabelled)\n            free = next(iterator)\n",
                "        free = unlabelled.dataset[torch.randint(0, 60, (4,))]\n",
            ),
        ),
    ),
    Script(
        "itertools_cycle",
        FOUND,
        "targets",
        "an index in run.state",
        (
            ("\ntargets = itertools.cycle(target_domain)\n", "\nstate = run.state(place=0)\n"),
            (
                "        other = next(targets)\n",
                "        other = target_domain[state.place % len(target_domain)]\n        state.place += 1\n",
            ),
        ),
    ),
    # Not repeatable with one worker: each loss is scaled by the time passed. Newcomers do not join.
    Script(
        "time_based_decision",
        FOUND,
        "passed",
        "run.agree",
        (("        passed = time.time() - begun\n", "        passed = 0.1 * run.steps_done\n"),),
    ),
    Script("compiled_model", EQUAL),
    Script("batchnorm_dropout", EQUAL),
    Script("spectral_and_weight_norm", EQUAL),
    Script("leader_estimates_loss", EQUAL),
    Script("leader_estimates_in_body", EQUAL),
    Script(
        "ddpm_ema_warm",
        FOUND,
        "ema_model",
        "run.register and after_update=",
        (
            (
                "run = elastic.join()\n",
                '\n\ndef update():\n    with torch.no_grad():\n        ema.step_ema(ema_model, model)\n\n\nrun = elastic.join()\nrun.register("ema_model", ema_model)\nrun.register("ema", lambda: ema.step, lambda step: setattr(ema, "step", step))\n',
            ),
            ("batch_size=4)", "batch_size=4, after_update=update)"),
            ("        ema.step_ema(ema_model, model)\nrun.save", "run.save"),
        ),
    ),
    Script("dataset_cache", EQUAL),
    Script(
        "dataset_cache_augmented",
        FOUND,
        "cache",
        "no augmentation in what is cached",
        (
            (
                "            self.cache[i] = self.x[i] + 0.3 * torch.randn(8)\n        return self.cache[i],",
                "            self.cache[i] = self.x[i]\n        return self.cache[i] + 0.3 * torch.randn(8),",
            ),
        ),
    ),
    Script("python_random_in_workers", EQUAL),
    Script(
        "module_global_counter",
        FOUND,
        "calls",
        "run.state",
        (
            ("shared_schedule.weight()", "min(1.0, state.calls / 80)"),
            ("        optimizer.step()\n", "        optimizer.step()\n        state.calls += 1\n"),
            (_JOIN, _JOIN + "state = run.state(calls=1)\n"),
        ),
    ),
    Script(
        "class_attribute_counter",
        FOUND,
        "calls",
        "run.state",
        (("    calls = 0\n", ""), ("Loss.calls", "state.calls"), (_JOIN, _JOIN + "state = run.state(calls=0)\n")),
    ),
    Script(
        "closure_nonlocal_counter",
        FOUND,
        "done",
        "run.state",
        (
            ("    done = 0\n", ""),
            (
                "        nonlocal done\n        done += 1\n        return min(1.0, done",
                "        state.done += 1\n        return min(1.0, state.done",
            ),
            (_JOIN, _JOIN + "state = run.state(done=0)\n"),
        ),
    ),
    Script(
        "generator_function_schedule",
        FOUND,
        "weights",
        "run.state",
        (
            ("next(weights)", "state.value"),
            (_JOIN, _JOIN + "state = run.state(value=1.0)\n"),
            ("        optimizer.step()\n", "        optimizer.step()\n        state.value *= 0.98\n"),
        ),
    ),
    Script(
        "args_namespace",
        FOUND,
        "args",
        "run.state",
        (
            ("args.iteration", "state.iteration"),
            ("args.beta", "state.beta"),
            (_JOIN, _JOIN + "state = run.state(iteration=0, beta=0.0)\n"),
        ),
    ),
    Script(
        "numpy_moving_stats",
        FOUND,
        "stats",
        "state = run.state(stats=…)",
        (("stats[", "state.stats["), (_JOIN, _JOIN + "state = run.state(stats=stats)\n")),
    ),
    Script("pcgrad_surgery", EQUAL),
    Script("vq_codebook_buffers", EQUAL),
    Script("center_loss", EQUAL),
    Script(
        "loss_scale_by_hand",
        FOUND,
        "scale",
        "state = run.state(scale=16.0, good=0)",
        (
            ("scale, good = 16.0, 0\n", "run = elastic.join()\nstate = run.state(scale=16.0, good=0)\n"),
            ("    global scale, good\n", ""),
            ("div_(scale)", "div_(state.scale)"),
            (
                "    good += 1\n    if good % 5 == 0:\n        scale *= 1.7",
                "    state.good += 1\n    if state.good % 5 == 0:\n        state.scale *= 1.7",
            ),
            ("\n\nrun = elastic.join()\nmodel,", "\n\nmodel,"),
            ("targets) * scale)", "targets) * state.scale)"),
        ),
    ),
    Script(
        "shuffled_in_place",
        FOUND,
        "pairs",
        "state = run.state(pairs=list(range(128)))",
        (
            ("pairs = list(range(128))\n", "run = elastic.join()\nstate = run.state(pairs=list(range(128)))\n"),
            ("len(pairs)", "len(state.pairs)"),
            ("return x[pairs[i]], y[pairs[i]]", "return x[state.pairs[i]], y[state.pairs[i]]"),
            ("random.shuffle(pairs)", "random.shuffle(state.pairs)"),
            ("run = elastic.join()\nmodel,", "model,"),
        ),
    ),
    Script("meters_and_timing", EQUAL),
    Script("metrics_tensors", EQUAL),
    Script("progress_bar", EQUAL),
    Script(
        "history_saved",
        FOUND,
        "history",
        "run.mean and run.state",
        (
            ("\nhistory = []\n", "\nstate = run.state(history=[])\n"),
            ("        loss.backward()\n", "        run.mean(loss=loss)\n        loss.backward()\n"),
            ("        history.append(loss.item())\n", '    state.history.append(run.means["loss"])\n'),
            ('"history": history', '"history": state.history'),
        ),
    ),
    Script(
        "history_saved_by_function",
        FOUND,
        "meters",
        "run.mean and run.state",
        (
            ('meters = {"loss": 0.0, "seen": 0}\n', "state = run.state(loss=0.0, seen=0)\n"),
            ("        loss.backward()\n", "        run.mean(loss=loss)\n        loss.backward()\n"),
            ('        meters["loss"] += loss.item()\n', ""),
            ('        meters["seen"] += len(inputs)\n', "        state.seen += 1\n"),
            ("    save_checkpoint(", '    state.loss += run.means["loss"]\n    save_checkpoint('),
            ("**meters", '"loss": state.loss, "seen": state.seen'),
        ),
    ),
    Script(
        "ema_of_head",
        FOUND,
        "shadow",
        "state = run.state(shadow=…)",
        (
            ("\nshadow = [", "\nstate = run.state(shadow=["),
            ("clone()]\n", "clone()])\n"),
            ("shadow[0] = 0.95 * shadow[0]", "state.shadow[0] = 0.95 * state.shadow[0]"),
            ('"head": shadow', '"head": state.shadow'),
        ),
    ),
    Script("checkpoint_each_epoch", EQUAL),
    Script("saved_on_the_leader", EQUAL),
    Script("one_step_an_epoch", EQUAL),
    Script(
        "set_every_few_steps",
        FOUND,
        "weights",
        "state = run.state(weights=…)",
        (
            (_PREPARE, f"state = run.state(weights=torch.ones(2))\n{_PREPARE}"),
            ("            weights = ", "            state.weights = "),
            ("weight=weights", "weight=state.weights"),
        ),
    ),
    Script(
        "centred_by_first_batch",
        FOUND,
        "scale",
        "state = run.state(centre=None, scale=None)",
        (
            (
                "criterion = Centred()\nrun = elastic.join()\n",
                "criterion = Centred()\nrun = elastic.join()\nstate = run.state(centre=None, scale=None)\n",
            ),
            (
                "        if self.first:\n            self.centre = ",
                "        if state.centre is None:\n            state.centre = ",
            ),
            ("            self.first = False\n", ""),
            ("outputs - self.centre", "outputs - state.centre"),
            ("            scale = targets", "            state.scale = targets"),
            ("/ scale", "/ state.scale"),
        ),
    ),
    Script("bfloat16_autocast", EQUAL),
    Script(
        "parameter_attributes",
        FOUND,
        "ema",
        "state = run.state(ema=…)",
        (
            (
                "model, optimizer, batches = run.prepare(",
                "state = run.state(ema=[p.detach().clone() for p in model.parameters()])\nmodel, optimizer, batches = run.prepare(",
            ),
            ("for p in model.parameters():\n    p.ema = p.detach().clone()\n", ""),
            (
                "            for p in model.parameters():\n                p.ema.lerp_",
                "            for average, p in zip(state.ema, model.parameters()):\n                average.lerp_",
            ),
            ("{name: p.ema for name, p in model.named_parameters()}", '{"ema": state.ema}'),
        ),
    ),
    Script(
        "lru_cached_noise",
        FOUND,
        "mask",
        "a generator seeded by the argument",
        (("torch.rand(8)", "torch.rand(8, generator=torch.Generator().manual_seed(label))"),),
    ),
    Script(
        "weak_key_statistics",
        FOUND,
        "statistics",
        "register_buffer",
        (
            (
                "    old = statistics.get(module, 1.0)\n    statistics[module] = 0.9 * old + 0.1 * output.detach().abs().mean().item()\n",
                "    module.average.mul_(0.9).add_(0.1 * output.detach().abs().mean())\n",
            ),
            (
                "    layer.register_forward_hook(observe)\n",
                '    layer.register_forward_hook(observe)\n    layer.register_buffer("average", torch.ones(()))\n',
            ),
            ("statistics.get(model[2], 1.0)", "model[2].average"),
        ),
    ),
    Script(
        "context_variable",
        FOUND,
        "temperature",
        "state = run.state(temperature=1.0)",
        (
            (
                'temperature = contextvars.ContextVar("temperature", default=1.0)\nrun = elastic.join()\n',
                "run = elastic.join()\nstate = run.state(temperature=1.0)\n",
            ),
            (
                "temperature.set(max(0.3, temperature.get() * 0.98))",
                "state.temperature = max(0.3, state.temperature * 0.98)",
            ),
            ("temperature.get()", "state.temperature"),
        ),
    ),
    Script(
        "shared_value",
        FOUND,
        "shared_step",
        "state = run.state(step=0)",
        (
            (
                'shared_step = multiprocessing.Value("i", 0)\nrun = elastic.join()\n',
                "run = elastic.join()\nstate = run.state(step=0)\n",
            ),
            ("shared_step.value", "state.step"),
        ),
    ),
    Script(
        "generator_in_dataset",
        FOUND,
        "rng",
        "torch's global generator",
        (("torch.from_numpy(self.rng.normal(0, 0.1, 8)).float()", "0.1 * torch.randn(8)"),),
    ),
    Script(
        "enumerate_start",
        FOUND,
        "ni",
        "run.steps_done",
        (
            (
                "for ni, (inputs, targets) in enumerate(batches, start=epoch * len(batches)):",
                "for inputs, targets in batches:",
            ),
            ("(ni + 1)", "(run.steps_done + 1)"),
        ),
    ),
    Script(
        "tqdm_position",
        FOUND,
        "bar",
        "run.steps_done",
        (("(bar.n + 1)", "(run.steps_done + 1)"),),
    ),
    Script(
        "cached_property_noise",
        FOUND,
        "features",
        "a generator with a seed of its own",
        (("torch.randn(8, 8)", "torch.randn(8, 8, generator=torch.Generator().manual_seed(1))"),),
    ),
    Script(
        "thread_counts",
        FOUND,
        "mean",
        "state = run.state(mean=1.0)",
        (
            ("run = elastic.join()\n", "run = elastic.join()\nstate = run.state(mean=1.0)\n"),
            ("tracker = Tracker()\ntracker.start()\n", ""),
            (
                "        tracker.losses.put(loss.item())\n        tracker.losses.join()\n",
                "        state.mean = 0.9 * state.mean + 0.1 * loss.item()\n",
            ),
            ("tracker.mean", "state.mean"),
        ),
    ),
    Script(
        "environment_counter",
        FOUND,
        "CURRENT_STEP",
        "run.steps_done",
        (('int(os.environ["CURRENT_STEP"]) / 80', "run.steps_done / 80"),),
    ),
    Script(
        "file_statistics",
        FOUND,
        "",
        "state = run.state(mean=0.0)",
        (
            ("run = elastic.join()\n", "run = elastic.join()\nstate = run.state(mean=0.0)\n"),
            (
                "centre = moved(targets.mean().item())",
                "centre = state.mean\n        state.mean = 0.9 * centre + 0.1 * targets.mean().item()",
            ),
        ),
    ),
    Script(
        "default_argument",
        FOUND,
        "seen",
        "state = run.state(seen=[])",
        (
            ("run = elastic.join()\n", "run = elastic.join()\nstate = run.state(seen=[])\n"),
            ("weight(loss.item())", "weight(loss.item(), state.seen)"),
        ),
    ),
    Script(
        "class_registry",
        FOUND,
        "counts",
        "state = run.state(counts=…)",
        (
            ("run = elastic.join()\n", "run = elastic.join()\nstate = run.state(counts={False: 0, True: 0})\n"),
            ("cls.counts", "state.counts"),
        ),
    ),
    Script(
        "dataclass_slots",
        FOUND,
        "scale",
        "state = run.state(trainer=…)",
        (
            (
                "trainer_state = TrainerState()\nrun = elastic.join()\n",
                "run = elastic.join()\nstate = run.state(trainer=TrainerState())\n",
            ),
            ("trainer_state.", "state.trainer."),
        ),
    ),
    Script(
        "functional_buffers",
        FOUND,
        "centre",
        "state = run.state(buffers=…)",
        (
            (
                'buffers = {"centre": torch.zeros(8), "width": torch.ones(8)}\nrun = elastic.join()\n',
                'run = elastic.join()\nstate = run.state(buffers={"centre": torch.zeros(8), "width": torch.ones(8)})\n',
            ),
            ("        buffers = {", "        state.buffers = {"),
            ('buffers["', 'state.buffers["'),
        ),
    ),
    Script(
        "function_attribute",
        FOUND,
        "calls",
        "run.steps_done",
        (("/ noisy.calls", "/ (run.steps_done + 1)"),),
    ),
    Script("leader_in_variable", EQUAL),
    Script("scheduler_with_memory", EQUAL),
    Script(
        "criterion_with_statistics",
        FOUND,
        "norm",
        "run.prepare of both modules",
        (
            (
                "model, optimizer, batches = run.prepare(model,",
                "both = nn.ModuleList([model, criterion])\nboth, optimizer, batches = run.prepare(both,",
            ),
        ),
    ),
)
BY_NAME = {script.name: script for script in SCRIPTS}
