"""What the checks of a training find in data that were spoiled in known ways, and that good data pass."""

from dataclasses import replace
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest
import wrong_labels
from wrong_labels import both, energies, forces

from torchmdx.datasets.data_checks import check_data
from torchmdx.datasets.energy_units import depth, unit_of
from torchmdx.datasets.findings import table
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.references import fit_references
from torchmdx.datasets.splits import split
from torchmdx.datasets.store import Store, StoreWriter

HARTREE, KCAL = 27.211386, 23.060548


def checked(store):
    return check_data(store, split(store, validation=0.1, test=0.1))


def of(findings, check):
    return [one for one in findings if one.check == check]


def test_good_frames_pass(tmp_path):
    assert checked(wrong_labels.store(tmp_path / "s", 80)) == []


@pytest.mark.parametrize("spoiled", [[11], [3, 17, 30, 44]])
def test_failed_calculations_are_found_and_do_not_change_references(tmp_path, spoiled):
    good = wrong_labels.store(tmp_path / "good")
    bad = wrong_labels.store(tmp_path / "bad", change=energies(lambda k: k in spoiled, value=0.0))
    (one,) = checked(bad)
    assert (one.frames, one.extreme) == (tuple(spoiled), True)
    assert "as after a failed calculation" in one.text
    everything = np.arange(60)
    wanted, found = fit_references(good, everything, 8), fit_references(bad, everything, 8)
    assert np.abs(found - wanted).max() < 0.05  # plain least squares: tens of eV


def test_frames_in_another_unit_are_found(tmp_path):
    bad = wrong_labels.store(tmp_path / "bad", change=both(lambda k: k % 10 == 0, KCAL))
    one = of(checked(bad), "energies")[0]
    assert (one.frames, one.extreme) == (tuple(range(0, 60, 10)), True)
    assert "in kcal/mol and the others in eV" in one.text
    assert fit_references(bad, np.arange(60), 8)[8] == pytest.approx(wrong_labels.ATOMS[8], abs=0.2)


@pytest.mark.nightly
def test_outliers_are_warned_about_only(tmp_path):
    def change(k, f):
        return replace(f, energy=f.energy + 1.0 * f.counts) if k == 5 else f

    found = checked(wrong_labels.store(tmp_path / "s", change=change))
    assert [(one.frames, one.extreme) for one in found] == [((5,), False)]
    found = checked(wrong_labels.store(tmp_path / "t", change=forces(lambda k: k == 7, 30.0)))
    assert [(one.check, one.frames, one.extreme) for one in found] == [("largest forces", (7,), False)]
    assert of(checked(wrong_labels.store(tmp_path / "u", change=forces(lambda k: k == 7, 3e3))), "largest forces")[
        0
    ].extreme


def test_zero_forces_of_distorted_structures_are_found(tmp_path):
    found = checked(wrong_labels.store(tmp_path / "s", change=forces(lambda k: k % 3 == 0, 0.0)))
    (one,) = of(found, "zero forces")
    assert (one.frames, one.extreme) == (tuple(range(0, 60, 3)), True)
    one = of(checked(wrong_labels.store(tmp_path / "t", 120, forces(lambda k: k == 4, 0.0))), "zero forces")[0]
    assert (one.frames, one.extreme) == ((4,), False)


def test_zero_forces_of_symmetric_crystals_are_right(tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        for k, name in enumerate(("Cu", "Si", "NaCl") * 4):
            lattice = {"Cu": "fcc", "Si": "diamond", "NaCl": "rocksalt"}[name]
            atoms = ase.build.bulk(name, lattice, a=4.0 + 0.1 * k + 1.5 * (name != "Cu"), cubic=True)
            frame = Frames.single(
                atoms.positions, atoms.numbers, cell=atoms.cell.array, pbc=[True] * 3, energy=-float(len(atoms)),
                forces=np.zeros((len(atoms), 3)),
            )  # fmt: skip
            writer.add(frame, "bulk.xyz", k)
    store = Store.open(tmp_path / "s")
    assert of(check_data(store, {"train": np.arange(len(store))}), "zero forces") == []


def test_gradients_are_found_in_frames_without_order(tmp_path):
    one = of(checked(wrong_labels.store(tmp_path / "s", change=forces(lambda k: True, -1.0))), "sign of forces")[0]
    assert one.extreme
    assert one.frames == ()
    assert "they may be gradients" in one.text


@pytest.mark.parametrize("factor", [1 / HARTREE, KCAL])
def test_forces_in_another_unit_than_energies_are_found(tmp_path, factor):
    one = of(checked(wrong_labels.store(tmp_path / "s", change=forces(lambda k: True, factor))), "unit of forces")[0]
    assert one.extreme
    assert "check the units" in one.text


@pytest.mark.nightly_for("0.07349864501572981-rydberg")
@pytest.mark.parametrize(("factor", "unit"), [(1 / HARTREE, "hartree"), (2 / HARTREE, "rydberg"), (KCAL, "kcal/mol")])
def test_the_unit_of_all_electron_energies_is_guessed(tmp_path, factor, unit):
    (one,) = of(checked(wrong_labels.store(tmp_path / "s", change=both(lambda k: True, factor))), "energy unit")
    assert one.extreme
    assert f"as if they were in {unit}:" in one.text


def test_copies_in_two_parts_are_named(tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        made = wrong_labels.frames(40)
        near = [replace(f, positions=f.positions + 0.001 * np.arange(f.num_atoms)[:, None]) for f in made[:3]]
        writer.add(Frames.concatenate([*made, *near, *made[5:7]]), "made.xyz", 0)
    store = Store.open(tmp_path / "s")
    found = check_data(store, {"train": np.arange(40), "test": np.arange(40, 45)})
    (exact,), (close,) = of(found, "copies"), of(found, "near copies")
    assert (exact.frames, close.frames) == ((43, 44), (40, 41, 42))
    assert not exact.extreme
    (exact,) = of(check_data(store, {"train": np.arange(40), "test": np.arange(42, 45)}), "copies")
    assert exact.extreme
    lines = table(found, store)
    assert any("made.xyz, frames 40, 41, 42" in line for line in lines)


def test_energies_of_valence_electrons_are_not_taken_for_hartree(tmp_path):
    """Their ratios to all electrons may be near 1/27.2, and differ between formulas."""
    valence = {1: -13.6, 6: -1030.0 / 20.5, 8: -2042.0 / 41}

    def change(k, f):
        lost = sum(valence[int(z)] - wrong_labels.ATOMS[int(z)] for z in f.atomic_numbers)
        return replace(f, energy=f.energy + lost)

    store = wrong_labels.store(tmp_path / "s", change=change)
    assert unit_of(float(np.median(depth(store.gather(np.arange(60)))))) == "hartree"
    assert of(checked(store), "energy unit") == []


@pytest.mark.nightly_for("-1.0-silanes", "1.0-ethanol")
@pytest.mark.parametrize("name", ["ethanol", "organic", "silanes"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_signs_in_frames_of_real_molecules(tmp_path, name, sign):
    """GFN2-xTB, of molecules whose bonds differ more in energy than their stretching does."""
    atoms = ase.io.read(Path(__file__).parents[2] / "examples" / "data" / f"{name}.xyz", ":")
    with StoreWriter(tmp_path / "s") as writer:
        for k, one in enumerate(atoms):
            forces = sign * one.get_forces()
            frame = Frames.single(one.positions, one.numbers, energy=one.get_potential_energy(), forces=forces)
            writer.add(frame, "x.xyz", k)
    store = Store.open(tmp_path / "s")
    found = [one.check for one in check_data(store, {"train": np.arange(len(store))}) if one.extreme]
    assert found[:1] == ([] if sign > 0 else ["sign of forces"])
