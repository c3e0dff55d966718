"""Energies against forces without trajectories, on surfaces worked out here."""

import numpy as np
import pytest
import wrong_labels
from ase.build import bulk
from ase.calculators.emt import EMT

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.pair_fit import pair_fit
from torchmdx.datasets.store import Store, StoreWriter


@pytest.mark.nightly_for("0.04")
@pytest.mark.parametrize("factor", [1.0, -1.0, 0.04])
def test_sign_and_ratio_of_unordered_molecules(tmp_path, factor):
    store = wrong_labels.store(tmp_path / "s", change=wrong_labels.forces(lambda k: True, factor))
    found = pair_fit(store, np.arange(60))
    assert found.correlation * factor > 0.7 * abs(factor)
    assert 0.4 < found.ratio * factor < 2.5  # a pair potential tells units, not percents


def test_crystals_with_images_across_the_cell(tmp_path):
    generator = np.random.default_rng(0)
    with StoreWriter(tmp_path / "s") as writer:
        for k in range(30):
            atoms = bulk("Cu", cubic=True)
            atoms.set_cell(atoms.cell @ (np.eye(3) + generator.normal(0, 0.02, (3, 3))), scale_atoms=True)
            atoms.rattle(generator.uniform(0.02, 0.2), rng=generator)
            atoms.calc = EMT()
            frame = Frames.single(
                atoms.positions, atoms.numbers, cell=atoms.cell.array, pbc=[True] * 3,
                energy=atoms.get_potential_energy(), forces=-atoms.get_forces(),
            )  # fmt: skip
            writer.add(frame, "cu.xyz", k)
    assert pair_fit(Store.open(tmp_path / "s"), np.arange(30)).correlation < -0.7


def test_too_few_frames_say_nothing(tmp_path):
    store = wrong_labels.store(tmp_path / "s", 12)
    assert pair_fit(store, np.arange(12)) is None
    assert pair_fit(store, np.arange(0)) is None
