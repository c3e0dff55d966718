import numpy as np
import pytest

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.references import fit_references
from torchmdx.datasets.store import Store, StoreWriter

RNG = np.random.default_rng(3)


def molecule(numbers, **labels) -> Frames:
    return Frames.single(RNG.normal(size=(len(numbers), 3)), np.array(numbers), **labels)


def test_references_are_those_that_the_energies_were_made_of(tmp_path):
    true = {1: -13.5, 6: -1000.25, 8: -2000.5}
    with StoreWriter(tmp_path / "set") as writer:
        for numbers in ([1, 1], [8, 1, 1], [6, 1, 1, 1, 1], [6, 8], [8, 8]):
            writer.add(molecule(numbers, energy=sum(true[z] for z in numbers)), "x", 0)
        writer.add(molecule([8, 8, 8]), "x", 9)
    store = Store.open(tmp_path / "set")
    found = fit_references(store, np.arange(6), 10)
    assert found.shape == (11,)
    for z, energy in true.items():
        assert found[z] == pytest.approx(energy, abs=1e-6)
    assert found[[0, 2, 3, 4, 5, 7, 9, 10]] == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="max_z must be at least 8, .* got 7"):
        fit_references(store, np.arange(6), 7)
    with pytest.raises(ValueError, match="got none among 1"):
        fit_references(store, np.array([5]), 10)


def test_references_of_one_composition_are_the_smallest_that_fit(tmp_path):
    with StoreWriter(tmp_path / "set") as writer:
        writer.add(Frames.concatenate([molecule([8, 1, 1], energy=-30.0)] * 3), "x", 0)
    found = fit_references(Store.open(tmp_path / "set"), np.arange(3), 8)
    # The shortest vector with r8 + 2 r1 = -30.
    assert found[[8, 1]] == pytest.approx([-6.0, -12.0])
