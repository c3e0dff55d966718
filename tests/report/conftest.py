"""Stores of labelled structures, and potentials that predict them more or less well."""

import copy

import pytest
import torch
from ase import Atoms
from frame_sets import frames_of, molecules, write_store

from torchmdx.datasets.store import Store


@pytest.fixture
def mixed(ethanol, cation, crystal, slab, wire, chiral) -> list[Atoms]:
    """Molecules, a charged one, and structures with one to three periodic directions."""
    return [ethanol, cation, crystal, slab, wire, chiral, ethanol[:1]]


@pytest.fixture(scope="session")
def other(make_potential):
    """A float64 potential near to, but not the same as, the session's `potential`."""
    near = copy.deepcopy(make_potential())
    with torch.no_grad():
        torch.manual_seed(5)
        near.scale.mul_(1.02)
        near.reference_energies.add_(0.001 * torch.randn(len(near.reference_energies), dtype=torch.float64))
    return near


@pytest.fixture(scope="session")
def store(tmp_path_factory, potential) -> Store:
    """24 molecules of 3 to 9 atoms, labelled by `potential`; frames 16 on are 100 on of a second file."""
    frames = frames_of(molecules(24), potential)
    return write_store(tmp_path_factory.mktemp("stores") / "molecules", frames, split_at=16)
