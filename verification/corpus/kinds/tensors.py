"""Scripts that keep tensors, arrays, collections of them, or copies of the model."""

from __future__ import annotations

from ..script import EQUAL, FOUND, Script

_JOIN = "run = elastic.join()\n"
_PREPARE = "model, optimizer, batches = run.prepare("

SCRIPTS: tuple[Script, ...] = (
    Script("active_learning_pool", EQUAL),
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
    Script("teacher_each_epoch", EQUAL),
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
    Script("pseudo_labels_each_epoch", EQUAL),
    Script("kmeans_each_epoch", EQUAL),
    Script("ppo_old_policy", EQUAL),
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
    Script("pruning_masks", EQUAL),
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
    Script(
        "numpy_moving_stats",
        FOUND,
        "stats",
        "state = run.state(stats=…)",
        (("stats[", "state.stats["), (_JOIN, _JOIN + "state = run.state(stats=stats)\n")),
    ),
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
    Script(
        "queue_from_epoch",
        FOUND,
        "queue",
        "state = run.state(queue=…)",
        (
            ("        optimizer.step()\n", ""),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
            (
                "queue = torch.zeros(32, 4)\nrun = elastic.join()\n",
                "run = elastic.join()\nstate = run.state(buffer=torch.zeros(32, 4))\n",
            ),
            ("        queue[4:] = queue[:-4]", "        state.buffer[4:] = state.buffer[:-4]"),
            ("        queue[:4]", "        state.buffer[:4]"),
            ("@ queue.T", "@ state.buffer.T"),
        ),
    ),
    Script(
        "loss_aware_timesteps",
        FOUND,
        "_loss_",
        "state = run.state(history=…, counts=…)",
        (
            ("self._loss_history = np", "self.state = run.state(history=np"),
            ("history_per_term])\n        self._loss_counts = np", "history_per_term]), counts=np"),
            ("dtype=int)\n", "dtype=int))\n"),
            ("self._loss_history", "self.state.history"),
            ("self._loss_counts", "self.state.counts"),
            (
                "sampler = LossSecondMomentResampler(timesteps=4, history_per_term=64)\nrun = elastic.join()\n",
                "run = elastic.join()\nsampler = LossSecondMomentResampler(timesteps=4, history_per_term=64)\n",
            ),
            ("        optimizer.step()\n", ""),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
        ),
    ),
    Script(
        "temporal_ensembling",
        FOUND,
        "ensemble",
        "state = run.state(ensemble=…)",
        (
            (
                "ensemble = torch.zeros(128, 2)\nrun = elastic.join()\n",
                "run = elastic.join()\nstate = run.state(ensemble=torch.zeros(128, 2))\n",
            ),
            ("- ensemble[index]", "- state.ensemble[index]"),
            ("        ensemble[index] = 0.6 * ensemble", "        state.ensemble[index] = 0.6 * state.ensemble"),
            ("        optimizer.step()\n", ""),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
        ),
    ),
    Script(
        "hard_examples_dict",
        FOUND,
        "sample_losses",
        "state = run.state(sample_losses={})",
        (
            (
                "sample_losses = {}\nrun = elastic.join()\n",
                "run = elastic.join()\nstate = run.state(sample_losses={})\n",
            ),
            ("[sample_losses.get", "[state.sample_losses.get"),
            ("            sample_losses[i] =", "            state.sample_losses[i] ="),
            ("        optimizer.step()\n", ""),
            ('run.save(model, "model.pt")', '        optimizer.step()\nrun.save(model, "model.pt")'),
        ),
    ),
    Script("dynamic_weight_average", EQUAL),
    Script(
        "loss_spike_window",
        FOUND,
        "window",
        "state = run.state(window=deque(maxlen=32))",
        (
            (
                "window = deque(maxlen=32)\nrun = elastic.join()\n",
                "run = elastic.join()\nstate = run.state(losses=deque(maxlen=32))\n",
            ),
            ("window", "state.losses"),
        ),
    ),
    Script(
        "flexmatch_thresholds",
        FOUND,
        "selected",
        "state = run.state(selected=…)",
        (
            (
                "thresholds = Thresholds(128, 3)\nrun = elastic.join()\n",
                "run = elastic.join()\nthresholds = Thresholds(128, 3)\n",
            ),
            (
                "        self.selected = torch.full((samples,), -1)\n        self.classwise_acc = torch.zeros(classes)\n",
                "        self.state = run.state(selected=torch.full((samples,), -1), classwise_acc=torch.zeros(classes))\n",
            ),
            ("self.selected", "self.state.selected"),
            ("self.classwise_acc", "self.state.classwise_acc"),
        ),
    ),
    Script(
        "ada_probability",
        FOUND,
        "batch_idx",
        "run.mean, @run.every, a buffer of the model",
        (
            (
                "signs, batch_idx = [], 0\n",
                'net, model = model, nn.ModuleDict({"net": model, "augment": augment_pipe})\n',
            ),
            ("model(augment_pipe", "net(augment_pipe"),
            (
                "        optimizer.step()\n",
                "        run.mean(sign=logits.detach().sign().mean())\n        optimizer.step()\n",
            ),
            (
                "        signs.append(logits.detach().sign().mean())\n        batch_idx += 1\n        if batch_idx % 4 == 0:\n            adjust = torch.sign(torch.stack(signs).mean() - 0.1) * 0.1\n            augment_pipe.p.copy_((augment_pipe.p + adjust).clamp(0, 1))\n            signs.clear()\n",
                "",
            ),
            (
                "for epoch in",
                '@run.every(steps=4)\ndef adapt():\n    adjust = 0.1 if run.means["sign"] > 0.1 else -0.1\n    augment_pipe.p.copy_((augment_pipe.p + adjust).clamp(0, 1))\n\n\nfor epoch in',
            ),
        ),
    ),
    Script("path_length_mean", FOUND, "pl_mean"),
    Script(
        "dino_center",
        FOUND,
        "center",
        "a part of the model",
        (
            (
                "dino_loss = DinoLoss(4)\n",
                'dino_loss = DinoLoss(4)\nnet, model = model, nn.ModuleDict({"net": model, "loss": dino_loss})\n',
            ),
            ("model(inputs", "net(inputs"),
        ),
    ),
    Script(
        "best_parameters_by_loss",
        FOUND,
        "best_weight",
        "run.mean, @run.every, and state = run.state(best_weight=None)",
        (
            ('best_loss, best_weight = float("inf"), None\n', ""),
            (_JOIN, _JOIN + 'state = run.state(best_loss=float("inf"), best_weight=None)\n'),
            ("        loss.backward()\n", "        loss.backward()\n        run.mean(loss=loss)\n"),
            (
                "        if loss.item() < best_loss:\n            best_loss = loss.item()\n            best_weight = model.weight.detach().clone()\n",
                "",
            ),
            (
                "for epoch in",
                '@run.every(steps=1)\ndef keep():\n    if run.means["loss"] < state.best_loss:\n        state.best_loss, state.best_weight = run.means["loss"], model.weight.detach().clone()\n\n\nfor epoch in',
            ),
            ('"weight": best_weight, "loss": best_loss', '"weight": state.best_weight, "loss": state.best_loss'),
        ),
    ),
)
