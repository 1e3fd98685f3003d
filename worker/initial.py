"""The weights that a model begins with: drawn from the job's seed, if the model is made after `join`.

All workers of a job begin with the same ones in any case: one worker begins, and all others get its state. The seed makes them
the same in every run. A model that was made before has been drawn from whatever seed there was.
"""

from __future__ import annotations

import gc
import warnings

import torch

from .virtual import derive_seed, seed_everything

CHOSEN_BELOW = 1 << 32  # torch draws the seed of a process that sets none from a much larger range


class InitialWeights:
    """Made where a script joins."""

    def __init__(self, seed: int) -> None:
        self._chosen = torch.initial_seed() < CHOSEN_BELOW  # by the script, before
        self._before = set() if self._chosen else {id(each) for each in gc.get_objects() if _is_module(each)}
        seed_everything(derive_seed(seed, "initial weights"))

    def check(self, model: torch.nn.Module) -> None:
        """Warn of a model that was made before, with no seed of the script's own."""
        if id(model) in self._before:
            warnings.warn(
                "the model was made before elastic.join(), which seeds the generators: unless its weights are read from a "
                "file, they are other ones in each run. Make it after join(), or call torch.manual_seed() before it",
                stacklevel=3,
            )


def _is_module(each: object) -> bool:
    return issubclass(type(each), torch.nn.Module)
