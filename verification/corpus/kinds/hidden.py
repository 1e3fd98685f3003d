"""Scripts with a value that acts late, or that changes where the source hardly shows it: under another name, by `setattr`, in a
property, a closure, a partial function or an iterator.
"""

from __future__ import annotations

from ..script import EITHER, EQUAL, FOUND, Script

_JOIN = "run = elastic.join()\n"

SCRIPTS: tuple[Script, ...] = (
    Script(
        "lazy_regularization",
        FOUND,
        "mean_path_length",
        "state = run.state(mean_path_length=torch.zeros(()))",
        (
            ("\nmean_path_length = 0\n", "\n"),
            (_JOIN, _JOIN + "state = run.state(mean_path_length=torch.zeros(()))\n"),
            ("i % g_reg_every == 0", "run.steps_done % 4 == 0"),
            (
                "penalty, mean_path_length = path_regularize(fake, latents, mean_path_length)",
                "penalty, state.mean_path_length = path_regularize(fake, latents, state.mean_path_length)",
            ),
        ),
    ),
    Script(
        "callbacks_by_event",
        FOUND,
        "iter_num",
        "run.state(iter_num=0, penalty=0.0)",
        (
            ("        self.iter_num = 0\n        self.penalty = 0.0\n", ""),
            ("elastic.join()\n", "elastic.join()\n        self.state = elastic_run.state(iter_num=0, penalty=0.0)\n"),
            ("self.penalty * ", "self.state.penalty * "),
            ("self.iter_num += 1", "self.state.iter_num += 1"),
            ("trainer.iter_num > 160", "trainer.iter_num > 40"),
            ("trainer.iter_num", "trainer.state.iter_num"),
            ("trainer.penalty", "trainer.state.penalty"),
        ),
    ),
    Script(
        "progress_property",
        FOUND,
        "n_iter",
        "run.steps_done",
        (
            (", self.n_iter = model, total, 0", " = model, total"),
            ("self.n_iter / self.total", "run.steps_done / self.total"),
            ("        self.n_iter += 1\n", ""),
            ("total=6 * 4 * len", "total=6 * len"),
        ),
    ),
    Script(
        "partial_history",
        FOUND,
        "weight",
        "run.state(calls=0)",
        (
            ('    history["calls"] = history.get("calls", 0) + 1\n', "    history.calls += 1\n"),
            ('history["calls"] > warmup', "history.calls > warmup"),
            ("weight = partial(sparsity_weight, {}, 160)\n" + _JOIN, _JOIN),
            ("for epoch", "weight = partial(sparsity_weight, state, 40)\nfor epoch"),
            (_JOIN, _JOIN + "state = run.state(calls=0)\n"),
        ),
    ),
    Script(
        "alias_of_statistics",
        FOUND,
        "stats",
        "state = run.state(seen=0)",
        (
            (_JOIN, _JOIN + "state = run.state(seen=0)\n"),
            ('self.stats["seen"] >', "state.seen >"),
            ('stats["seen"] += len(inputs)', "state.seen += len(inputs) * run.virtual_workers"),
        ),
    ),
    Script(
        "options_by_setattr",
        FOUND,
        "opt.iteration",
        "opt = run.state(iteration=0, sparsity=0.0, noise=0.0)",
        (
            ("opt = argparse.Namespace(iteration=0, sparsity=0.0, noise=0.0)\n", ""),
            (_JOIN, _JOIN + "opt = run.state(iteration=0, sparsity=0.0, noise=0.0)\n"),
            ("{160: ", "{40: "),
            (" 170: ", " 43: "),
        ),
    ),
    Script(
        "hidden_by_setattr",
        FOUND,
        "hidden",
        "own = run.per_virtual_worker(hidden=None)",
        (
            ('getattr(self, "hidden", None)', "own.hidden"),
            ('setattr(self, "hidden", hidden.detach())', "own.hidden = hidden.detach()"),
            (_JOIN, _JOIN + "own = run.per_virtual_worker(hidden=None)\n"),
        ),
    ),
    Script(
        "itertools_count",
        FOUND,
        "counter",
        "run.steps_done",
        (("next(counter)", "run.steps_done"), ("iteration > 160", "iteration > 40")),
    ),
    Script(
        "enum_phase",
        FOUND,
        "seen",
        "state = run.state(seen=0, phase=…)",
        (
            ("phase, seen = Phase.WARM_UP, 0\n", ""),
            (_JOIN, _JOIN + 'state = run.state(phase="WARM_UP", seen=0)\n'),
            ("match phase:", "match Phase[state.phase]:"),
            (
                "                seen += 1\n                if seen > 160",
                "                state.seen += 1\n                if state.seen > 40",
            ),
            ("phase = Phase.SPARSE", 'state.phase = "SPARSE"'),
        ),
    ),
    Script(
        "train_state_replaced",
        FOUND,
        "state",
        "state = run.state(step=0, scale=0.05)",
        (
            ("state = TrainState(step=0, scale=0.05)\n" + _JOIN, _JOIN + "state = run.state(step=0, scale=0.05)\n"),
            ("    return state._replace(step=state.step + 1), ", "    state.step += 1\n    return state, "),
            ("step >= 160", "step >= 40"),
        ),
    ),
    Script(
        "vocabulary_on_the_fly",
        FOUND,
        "vocabulary",
        "a vocabulary made before the loop",
        (
            (
                "defaultdict(lambda: len(vocabulary))",
                "{word: number for number, word in enumerate(sorted(set(words)))}",
            ),
        ),
    ),
    Script(
        "labels_corrected",
        FOUND,
        "targets",
        "targets = run.epoch_begin(…)",
        (
            (
                _JOIN,
                "\n\ndef corrected(epoch):\n    confidence, predicted = model(x).detach().softmax(1).max(1)\n"
                "    return torch.where((confidence > 0.95) & (epoch >= 3), predicted, y)\n\n\n" + _JOIN,
            ),
            ("(5):\n", "(5):\n    targets = run.epoch_begin(lambda: corrected(epoch))\n"),
            ("(logits, labels)", "(logits, targets[indices])"),
            ("        if epoch >= 3:\n", ""),
            ("            confidence, predicted = logits.detach().softmax(1).max(1)\n", ""),
            ("            sure = confidence > 0.95\n", ""),
            ("            dataset.targets[indices[sure]] = predicted[sure]\n", ""),
        ),
    ),
    Script("best_model_weights", EQUAL),
    Script(
        "data_prefetcher",
        FOUND,
        "prefetcher",
        "for inputs, targets in batches:",
        (
            ("    prefetcher = DataPrefetcher(batches)\n    inputs, targets = prefetcher.next()\n", ""),
            ("    while inputs is not None:", "    for inputs, targets in batches:"),
            ("        inputs, targets = prefetcher.next()\n", ""),
        ),
    ),
    Script(
        "alternating_optimizers",
        FOUND,
        "updates=",
        "prepare(…, updates={…})",
        (
            ("(x, y), batch_size=4)", '(x, y), batch_size=4, updates={"weights": w_optim, "alphas": alpha_optim}\n)'),
            ("run.prepare(model,", "run.prepare(\n    model,"),
            ("step % 2 == 0", 'batches.update == "weights"'),
        ),
    ),
    Script(
        "late_max_norm",
        FOUND,
        "parameter weight",
        "prepare(…, after_update=…)",
        (
            (
                _JOIN,
                "\n\ndef renorm():\n    if run.steps_done >= 2 * run.steps_per_epoch:\n        model.weight.data.mul_(0.99)\n\n\n"
                + _JOIN,
            ),
            ("batch_size=4)", "batch_size=4, after_update=renorm)"),
            ("        if epoch >= 2:\n            model.weight.data.mul_(0.99)\nrun", "run"),
        ),
    ),
    Script(
        "late_average",
        FOUND,
        "average",
        "AveragedModel",
        (
            (
                "average, count, start = None, 0, 2\n",
                "average, start = torch.optim.swa_utils.AveragedModel(model), 2\n",
            ),
            ("            weights = {name: p.detach().clone() for name, p in model.named_parameters()}\n", ""),
            ("            if average is None:\n                average = weights\n            else:\n    ", ""),
            (
                "            average = {name: (count * a + weights[name]) / (count + 1) for name, a in average.items()}\n"
                "            count += 1\n",
                "            average.update_parameters(model)\n",
            ),
            ("(average)", "(average.module.state_dict())"),
        ),
    ),
    Script("plateau_by_hand", EQUAL),
    Script(
        "reseeded_by_counter",
        FOUND,
        "iter_num",
        "run.steps_done and run.virtual_worker",
        (
            ("seed, iter_num = 1337, 0", "seed = 1337"),
            ("seed + iter_num", "seed + 4 * run.steps_done + run.virtual_worker"),
            ("        iter_num += 1\n", ""),
        ),
    ),
    Script(
        "coroutine_average",
        FOUND,
        "smoothed",
        "state = run.state(average=None)",
        (
            ("smoothed = moving_average(0.9)\nnext(smoothed)\n", ""),
            (_JOIN, _JOIN + "state = run.state(average=None)\n"),
            (
                "        typical = smoothed.send(loss.item())\n",
                "        value = loss.item()\n"
                "        state.average = value if state.average is None else 0.9 * state.average + 0.1 * value\n"
                "        typical = state.average\n",
            ),
        ),
    ),
    Script(
        "environment_stepped",
        FOUND,
        "envs",
        "run.per_virtual_worker(position=…)",
        (
            ("next_obs = envs.reset()\n", ""),
            (_JOIN, _JOIN + "own = run.per_virtual_worker(position=envs.position, t=0)\nenvs.rng = np.random\n"),
            (
                "        distribution =",
                "        envs.position, envs.t = own.position, own.t\n        next_obs = torch.tensor(envs.position, dtype=torch.float32)\n        distribution =",
            ),
            ("        advantage =", "        own.position, own.t = envs.position, envs.t\n        advantage ="),
        ),
    ),
    Script(
        "closure_with_hold",
        FOUND,
        "done",
        "state = run.state(done=0)",
        (
            ("    done = 0\n\n", ""),
            ("        nonlocal done\n        done += 1\n", "        state.done += 1\n"),
            ("0.0 if done <=", "0.0 if state.done <="),
            ("calls=160", "calls=40"),
            (_JOIN, _JOIN + "state = run.state(done=0)\n"),
        ),
    ),
    Script(
        "settings_module",
        FOUND,
        "step",
        "run.steps_done",
        (
            ("        settings.step += 1\n", ""),
            ("        loss = nn", "        settings.step = 4 * run.steps_done\n        loss = nn"),
        ),
    ),
    Script(
        "actnorm_first_batch",
        FOUND,
        "loc",
        "one forward pass before the loop",
        ((_JOIN, "model(x[:16])\n" + _JOIN),),
    ),
    Script("criterion_takes_step", FOUND, "global_step"),
    Script("memory_written_at_times", FOUND, "step"),
    Script("renewal_by_step_and_data", FOUND, "step"),
    Script("counter_by_two_names", FOUND, "step"),
    Script("warmup_starts_again", FOUND, "warmup.n"),
    Script("anchor_of_rare_batch", FOUND, "anchor"),
    Script("memory_of_rare_batch", FOUND, "memory"),
    Script("evaluation_counts_itself", FOUND, "correct"),
    Script("losses_in_comprehension", FOUND, "weight"),
    Script("trainer_and_callback_refer", FOUND, "trainer"),
    Script("forward_bound_at_epoch", FOUND, "forward", "`if epoch >= 1:`", (("epoch == 1", "epoch >= 1"),)),
    Script("class_patched_at_epoch", FOUND, "Net", "`if epoch >= 1:`", (("epoch == 1", "epoch >= 1"),)),
    Script("pass_in_an_expression", FOUND, "losses"),
    Script("rollback_by_evaluation", FOUND, "good"),
    Script("anchors_of_first_weights", EQUAL),
    Script("thread_local_average", FOUND, "_STORE.ema"),
    Script("generator_keeps_previous", FOUND, "with_previous.previous"),
    Script("shards_drawn_by_one_generator", FOUND, "rng"),
    Script("lookahead_handed_over", FOUND, "after_update.n"),
    Script("sampler_counts_passes", FOUND, "sampler.passes"),
    Script("attribute_of_torch", EITHER, "torch.my_step"),
    Script(
        "baseline_in_an_object",
        FOUND,
        "baseline.value",
        "state = run.state(baseline=baseline)",
        ((_JOIN, _JOIN + "state = run.state(baseline=baseline)\n"),),
    ),
    Script(
        "gan_snapshots_in_bodies",
        FOUND,
        "iters",
        "state = run.state(iters=0)",
        (
            ("iters = 0\n", "state = run.state(iters=0)\n"),
            ("iters % 8", "state.iters % 8"),
            ("iters += 1", "state.iters += 1"),
        ),
    ),
    Script("hidden_made_in_each_body", EQUAL),
)
