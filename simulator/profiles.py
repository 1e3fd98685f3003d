"""The throughputs that can be simulated: the tables from which the controller starts jobs of known models, too."""

from __future__ import annotations

from ..controller.profiles.curves import Curve, Profiles, easyscale_curves, load, speedups

__all__ = ["Curve", "Profiles", "easyscale_curves", "load", "speedups"]
