"""The conformance suite: requirements on every model, as checks that a potential passes or fails.

The checks use only energies and derivatives, so they apply to any network. Each compares two ways to compute the same
number, or a derivative with finite differences; errors are relative to the size of the forces.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch

from torchmdx.evaluation.check_structures import Case, case_of
from torchmdx.evaluation.checks import Check as Check
from torchmdx.evaluation.checks import Conformance as Conformance
from torchmdx.evaluation.checks import measured
from torchmdx.evaluation.conformance import contract, geometry
from torchmdx.models.potential import Potential
from torchmdx.runtime.isolation import isolated

# Name, requirement, largest error allowed, and the function that measures the error.
SUITE: tuple[tuple[str, str, float, Callable[[Case], float]], ...] = (
    ("answers", "energies are finite, one per atom, and depend on the geometry", 0.0, contract.answers),
    (
        "rotation",
        "forces rotate with the structure, energies stay",
        1e-9,
        partial(geometry.turned, mirror=False),
    ),
    ("reflection", "mirror images have the same energy", 1e-9, partial(geometry.turned, mirror=True)),
    ("permutation", "the order of atoms does not matter", 1e-9, geometry.permuted),
    ("batch", "structures in a batch do not interact", 1e-9, geometry.batched),
    ("supercell", "a doubled cell has twice the energy", 1e-9, geometry.supercell),
    ("lone atoms", "an atom without neighbours has an energy, but no force", 1e-9, geometry.lone_atom),
    ("cutoff", "energy and force go smoothly to zero at the cutoff, and remain zero", 1e-2, geometry.at_the_cutoff),
    ("forces", "forces are the negative gradient of the energy", 1e-5, geometry.force_differences),
    ("stress", "stress is the derivative of the energy with respect to strain", 1e-5, geometry.stress_differences),
    ("padding", "empty slots of a neighbour list contribute nothing", 1e-9, contract.padded),
    ("host", "launches depend on shapes only: no value is read on the host", 0.0, contract.reads_nothing),
    ("float32", "float32 gives the forces of float64", 1e-3, contract.single_precision),
    ("training", "a loss on forces has a gradient with respect to the weights", 1e-4, contract.second_derivatives),
    ("checkpoint", "saving and loading does not change results", 1e-12, contract.saved_and_loaded),
    ("step", "CapturedStep is right for moving atoms, with a graph on a GPU", 1e-3, contract.captured),
)


@isolated
def check(
    potential: Potential, *, device: torch.device | str | None = None, reflections: bool = True, verbose: bool = True
) -> Conformance:
    """Runs every check on copies of a potential, and prints the table.

    Args:
        device: Where the captured step runs; None takes a GPU if one is available. The other checks run on the CPU in
            float64.
        reflections: False for a model that may distinguish mirror images. Takes seconds for a small model. A check that
            raises has failed, and the table shows the exception.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = copy.deepcopy(potential).to(device="cpu", dtype=torch.float64).eval().requires_grad_(False)
    suite = [entry for entry in SUITE if reflections or entry[0] != "reflection"]
    found = measured("potential", suite, lambda: case_of(exact, torch.device(device)))
    if verbose:
        print(found)
    return found
