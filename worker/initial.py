"""Initial weights of a model: drawn from the job's seed, if the model is created after `join`.

All workers of a job begin with the same weights in any case: one worker begins, and all others get its state. The seed
makes the weights the same in every run. A model that was created before `join` has weights of another seed.
"""

from __future__ import annotations

import gc
import warnings

import torch

from .virtual import derive_seed, seed_everything

CHOSEN_BELOW = 1 << 32  # a process that sets no seed gets one of torch's from a much larger range


class InitialWeights:
    """Seeds the generators where a script joins, and recognizes models that were created before."""

    def __init__(self, seed: int) -> None:
        self._chosen = torch.initial_seed() < CHOSEN_BELOW  # whether the script has set a seed before
        self._before = set() if self._chosen else {id(each) for each in gc.get_objects() if _is_module(each)}
        seed_everything(derive_seed(seed, "initial weights"))

    def check(self, model: torch.nn.Module) -> None:
        """Warn of a model that was created before `join`, without a seed of the script's own."""
        if id(model) in self._before:
            warnings.warn(
                "the model was made before elastic.join(), which seeds the generators: unless its weights are read from a "
                "file, they are other ones in each run. Make it after join(), or call torch.manual_seed() before it",
                stacklevel=3,
            )


def _is_module(each: object) -> bool:
    return issubclass(type(each), torch.nn.Module)
