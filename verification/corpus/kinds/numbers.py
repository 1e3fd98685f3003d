"""Scripts that keep a number: a counter, a schedule by hand, a moving average."""

from __future__ import annotations

from ..script import EQUAL, FOUND, Script

_JOIN = "run = elastic.join()\n"

SCRIPTS: tuple[Script, ...] = (
    Script("step_counter_curriculum", EQUAL),
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
    Script("mixup_alpha_schedule", EQUAL),
    Script("counter_halved_at_epochs", EQUAL),
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
    Script("loss_weight_at_epoch", EQUAL),
    Script("augmentation_off_at_epoch", FOUND, "mosaic", "if epoch >= 1:", (("epoch == 1", "epoch >= 1"),)),
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
    Script("gradient_noise", FOUND, "t", "before_update="),
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
    Script(
        "cyclical_lr_by_hand",
        FOUND,
        "iteration",
        "run.steps_done",
        (("        iteration += 1\n", ""), ("(iteration % 20)", "(run.steps_done % 20)")),
    ),
    # Not repeatable with one worker: each loss is scaled by the time passed. Newcomers do not join.
    Script(
        "time_based_decision",
        FOUND,
        "passed",
        "run.agree",
        (("        passed = time.time() - begun\n", "        passed = 0.1 * run.steps_done\n"),),
    ),
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
        "function_attribute",
        FOUND,
        "calls",
        "run.steps_done",
        (("/ noisy.calls", "/ (run.steps_done + 1)"),),
    ),
    Script("discriminator_start", EQUAL),
    Script(
        "freeze_updates",
        FOUND,
        "num_updates",
        "run.steps_done",
        (
            ("        model.set_num_updates(model.num_updates + 1)\n", ""),
            (
                "        nn.functional.cross",
                "        model.set_num_updates(run.steps_done)\n        nn.functional.cross",
            ),
        ),
    ),
    Script(
        "adaptive_kl",
        FOUND,
        "kl_ctl.value",
        "state = run.state(value=0.2)",
        (
            ("self.value, self.target", "self.state, self.target"),
            ("= init_kl_coef, target", "= run.state(value=init_kl_coef), target"),
            ("self.value *=", "self.state.value *="),
            ("kl_ctl.value", "kl_ctl.state.value"),
            (
                "kl_ctl = AdaptiveKLController(0.2, 0.01, 100)\nrun = elastic.join()\n",
                "run = elastic.join()\nkl_ctl = AdaptiveKLController(0.2, 0.01, 100)\n",
            ),
            (
                "        optimizer.step()\n        kl_ctl.update(kl.item(), len(inputs))\n",
                "        kl_ctl.update(kl.item(), len(inputs))\n        optimizer.step()\n",
            ),
        ),
    ),
    Script("scheduled_sampling", EQUAL),
    Script("early_stopping_object", EQUAL),
    Script(
        "baseline_from_first",
        FOUND,
        "baseline",
        "state = run.state(baseline=None)",
        (
            ("baseline", "state.baseline"),
            ("A state.baseline", "A baseline"),
            ("`if state.baseline", "`if baseline"),
            ("state.baseline = None\n", ""),
            (_JOIN, _JOIN + "state = run.state(baseline=None)\n"),
        ),
    ),
    Script("autoclip_percentile", FOUND, "clip()"),
    Script(
        "multiscale_held",
        FOUND,
        "size",
        "a size that follows from the step",
        (
            ("        if run.steps_done % 4 == 0:\n    ", ""),
            ("random.choice(", "random.Random(run.steps_done // 4).choice("),
        ),
    ),
)
