"""The optimizers of `torchmdx relax`, by name."""

from __future__ import annotations

from typing import Any

import ase.optimize
import numpy as np


class LBFGS(ase.optimize.LBFGS):
    """ASE's LBFGS, which forgets its history after a step along which the curvature was not positive.

    With s the step and y the change of the gradient, the approximate inverse Hessian is positive definite, and a step
    goes downhill, only if y·s > 0 for every kept pair. Far from a minimum ASE's own can climb, and fail to converge.
    """

    def update(self, pos: Any, forces: Any, r0: Any, f0: Any) -> None:
        """Adds the last step to the history, as ASE does, or clears the history."""
        kept: Any = getattr(self, "state", self)  # the history is an object of its own since ASE 3.29
        if kept.iteration > 0 and np.vdot(f0 - forces, pos - r0) <= 0:
            kept.iteration, kept.s, kept.y, kept.rho = 0, [], [], []
        else:
            super().update(pos, forces, r0, f0)


OPTIMIZERS = {
    "lbfgs": LBFGS,
    "fire": ase.optimize.FIRE,
    "bfgs": ase.optimize.BFGS,
    "mdmin": ase.optimize.MDMin,
}
