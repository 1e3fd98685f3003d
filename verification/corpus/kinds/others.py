"""Scripts with generators, iterators or data of their own, and scripts that change the gradient."""

from __future__ import annotations

from ..script import EQUAL, FOUND, Script

_JOIN = "run = elastic.join()\n"

SCRIPTS: tuple[Script, ...] = (
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
    Script("accumulation_by_hand", FOUND, "optimizer.step", "virtual workers"),
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
    Script("shuffled_in_place", EQUAL),
    Script(
        "lru_cached_noise",
        FOUND,
        "mask",
        "a generator seeded by the argument",
        (("torch.rand(8)", "torch.rand(8, generator=torch.Generator().manual_seed(label))"),),
    ),
    Script(
        "generator_in_dataset",
        FOUND,
        "rng",
        "torch's global generator",
        (("torch.from_numpy(self.rng.normal(0, 0.1, 8)).float()", "0.1 * torch.randn(8)"),),
    ),
    Script(
        "cached_property_noise",
        FOUND,
        "features",
        "a generator with a seed of its own",
        (("torch.randn(8, 8)", "torch.randn(8, 8, generator=torch.Generator().manual_seed(1))"),),
    ),
    Script(
        "sobol_timesteps",
        FOUND,
        "sobol",
        "sobol.fast_forward by run.steps_done",
        (
            (
                "        t = sobol.draw",
                "        sobol.reset()\n        sobol.fast_forward(4 * (run.steps_done * run.virtual_workers + run.virtual_worker))\n        t = sobol.draw",
            ),
        ),
    ),
    Script(
        "noise_random_state",
        FOUND,
        "rng",
        "state = run.state(rng=rng)",
        ((_JOIN, _JOIN + "state = run.state(rng=rng)\n"), ("(rng.normal", "(state.rng.normal")),
    ),
    Script(
        "warm_restarts_fraction",
        FOUND,
        "scheduler.step(epoch + i",
        "scheduler.step(run.steps_done / iters)",
        (("scheduler.step(epoch + i / iters)\nrun", "scheduler.step(run.steps_done / iters)\nrun"),),
    ),
)
