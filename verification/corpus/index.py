"""The scripts of the corpus: what is expected of each, by which name it has to be told, and the line that mends it."""

from __future__ import annotations

import ast
import enum
import shutil
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "scripts"


class Expected(enum.Enum):
    """equal: the same bits in every history, and no message. found: refused, not grown, or named. either: whichever, but not in
    silence with other bits."""

    EQUAL = "equal"
    FOUND = "found"
    EITHER = "either"


EQUAL, FOUND, EITHER = Expected.EQUAL, Expected.FOUND, Expected.EITHER


@dataclass(frozen=True)
class Script:
    """One script. The idiom that it stands for is the first line of its docstring."""

    name: str
    expected: Expected
    variable: str = ""  # what a message has to name
    line: str = ""  # the kind of line that mends it
    fix: tuple[tuple[str, str], ...] = ()  # replacements in the source that make the version with that line
    fresh: bool = False  # its result depends on how an interpreter begins

    @property
    def idiom(self) -> str:
        text = ast.get_docstring(ast.parse(self.source()))
        assert text, f"{self.name} does not say what it stands for"
        return text.splitlines()[0]

    def source(self, fixed: bool = False) -> str:
        """Raises ValueError if the source has not what the fix replaces."""
        text = (SOURCES / f"{self.name}.py").read_text()
        for old, new in self.fix if fixed else ():
            if old not in text:
                raise ValueError(f"{self.name}.py has no {old!r}")
            text = text.replace(old, new)
        return text

    def write(self, directory: Path, fixed: bool) -> None:
        """The script, and the modules that scripts share, into a working directory."""
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
                "batch_size=4)\nshadow = [p.detach().clone() for p in model.parameters()]\n",
                "batch_size=4, after_update=update)\n",
            ),
            (
                _JOIN,
                "shadow = [p.detach().clone() for p in model.parameters()]\n\n\n"
                "def update():\n    for average, p in zip(shadow, model.parameters()):\n"
                "        average.mul_(0.95).add_(p.detach(), alpha=0.05)\n\n\n"
                "def put(values):\n    for average, value in zip(shadow, values):\n        average.copy_(value)\n\n\n"
                + _JOIN
                + 'run.register("shadow", lambda: list(shadow), put)\n',
            ),
            (
                "        for average, p in zip(shadow, model.parameters()):\n            average.mul_(0.95).add_(p.detach(), alpha=0.05)\nrun.save",
                "run.save",
            ),
        ),
    ),
    Script("ema_dict", FOUND, "shadow", "run.register and after_update="),
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
    Script("observation_normalizer", FOUND, "rms", "run.register or run.state"),
    Script(
        "dqn_replay",
        FOUND,
        "memory",
        "state = run.state(memory=deque(maxlen=100))",
        (
            (_JOIN, _JOIN + "state = run.state(memory=memory)\n"),
            ("            memory.append", "            state.memory.append"),
            ("random.sample(memory, min(8, len(memory)))", "random.sample(state.memory, min(8, len(state.memory)))"),
        ),
    ),
    Script(
        "moco_queue_tensor",
        FOUND,
        "queue",
        "state = run.state(queue=…, pointer=0)",
        (
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
)
BY_NAME = {script.name: script for script in SCRIPTS}
