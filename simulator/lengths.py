"""Work of jobs for which a trace states how far they train instead of their duration.

Pollux' workloads (OSDI'21) name an application and its batch. The number of iterations to its target depends on the
batch. With batch B one iteration makes ``(B / B_0) (phi + B_0) / (phi + B)`` times the progress of one with B_0. Here
phi is the gradient noise scale (Pollux 3.1), taken as constant, though it grows during training. The three numbers of
each application are fitted to the published validation runs. They reproduce the lengths of these runs to within 3 % for
every batch there.

EasyScale's workload (Fig. 14) names epochs; a data set's size converts them to samples. NeuMF trains on MovieLens 1M
with four negatives for each of its 994,169 training ratings, as its public implementations do; the other sizes are
those of the data sets of EasyScale's Table 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..scheduler.arrays import Floats


@dataclass(frozen=True)
class Convergence:
    """Length of an application's training."""

    iterations: float  # with the batch `batch`
    batch: float
    noise_scale: float  # samples

    def gain(self, batch: Floats) -> Floats:
        """Return the progress of an iteration with such a batch, in iterations with this application's `batch`."""
        return (batch / self.batch) * (self.noise_scale + self.batch) / (self.noise_scale + batch)

    def iterations_with(self, batch: float) -> float:
        return self.iterations / float(self.gain(np.array(batch)))


POLLUX = {
    "bert": Convergence(14_774, 12, 9_370),
    "cifar10": Convergence(39_063, 128, 5_995),
    "deepspeech2": Convergence(28_536, 20, 1_021),
    "imagenet": Convergence(576_526, 200, 20_616),
    "ncf": Convergence(194_174, 256, 1_590_000),
    "yolov3": Convergence(103_444, 8, 525),
}

_IMAGENET = 1_281_167
_SQUAD = 87_599
EASYSCALE_SAMPLES = {
    "shufflenetv2": _IMAGENET,
    "resnet50": _IMAGENET,
    "vgg19": _IMAGENET,
    "swintransformer": _IMAGENET,
    "yolov3": 16_551,  # PASCAL VOC 2007 and 2012
    "ncf": 994_169 * 5,
    "bert": _SQUAD,
    "electra": _SQUAD,
}
