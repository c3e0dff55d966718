"""torchmdx in the place of openmm-ml's own potentials."""

from __future__ import annotations


def register_openmmml(*names: str) -> None:
    """Puts torchmdx in the place of the potentials that openmm-ml has under these names, such as "aceff-2.0".

    `MLPotential(name)` then gives torchmdx's, with openmm-ml's default for the Coulomb energy. "torchmdnet" needs a
    modelPath.

    Raises:
        ImportError: Without openmm-ml.
    """
    from openmmml import MLPotential

    from torchmdx.openmm.openmmml import PotentialFactory

    for name in names:
        MLPotential.registerImplFactory(name, PotentialFactory())
