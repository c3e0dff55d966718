"""Predictions of each frame in extended XYZ, written by `evaluate` and `energy`."""

import copy
import functools
import json

import ase.io
import numpy as np
import pytest
import torch
from frame_sets import frames_of, molecules, write_store

from torchmdx import Calculator, System, evaluate, load, save
from torchmdx.commands.cli import main
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.store import Store


@pytest.fixture(scope="module")
def members(tmp_path_factory, potential, other):
    """Three potentials that differ a little, as files."""
    folder, found = tmp_path_factory.mktemp("members"), []
    for seed in range(3):
        member = copy.deepcopy(other)
        torch.manual_seed(seed)
        with torch.no_grad():
            for weights in member.parameters():
                weights.add_(0.02 * weights.abs().mean() * torch.randn_like(weights))
        found.append(str(folder / f"{seed}.safetensors"))
        save(member, found[-1])
    return found


loaded = functools.cache(load)


def exact(path, atoms):
    """Energy, forces and stress of a potential by the exact model."""
    result = evaluate(loaded(path), System.from_ase(atoms), stress=bool(atoms.pbc.all()))
    return float(result.energy[0]), result.forces.numpy(), None if result.stress is None else result.stress[0].numpy()


CPU = ("--device", "cpu", "--dtype", "float64")


def test_labels_and_predictions_of_stores(tmp_path, capsys, members, potential, crystal, cation):
    structures = [*molecules(3), crystal, cation, *molecules(1, seed=9)[0:1]]
    store = write_store(tmp_path / "s", frames_of(structures, potential), split_at=4)
    target = tmp_path / "p.xyz"
    assert main(["evaluate", members[0], str(store.path), "--predictions", str(target), *CPU]) == 0
    assert f"predictions: {target}, 6 frames" in capsys.readouterr().err
    frames = ase.io.read(target, ":")
    labels = store.gather(np.arange(6))
    for k, (atoms, made) in enumerate(zip(frames, structures, strict=True)):
        own = slice(int(labels.offsets[k]), int(labels.offsets[k + 1]))
        energy, forces, stress = exact(members[0], made)
        np.testing.assert_array_equal(atoms.numbers, made.numbers)
        np.testing.assert_array_equal(atoms.pbc, made.pbc)
        assert atoms.get_potential_energy() == pytest.approx(labels.energy[k], abs=1e-9)
        np.testing.assert_allclose(atoms.get_forces(), labels.forces[own], atol=1e-7)
        assert atoms.info["predicted_energy"] == pytest.approx(energy, abs=1e-8)
        np.testing.assert_allclose(atoms.arrays["predicted_forces"], forces, atol=2e-8)
        assert ("predicted_stress" in atoms.info) == ("stress" in atoms.calc.results) == bool(made.pbc.all())
        if made.pbc.all():
            np.testing.assert_allclose(atoms.info["predicted_stress"], stress, atol=1e-9)
            np.testing.assert_allclose(atoms.get_stress(voigt=False), labels.stress[k], atol=1e-9)
        assert atoms.info["charge"] == made.info.get("charge", 0)
        assert (atoms.info["set"], atoms.info["file"], atoms.info["frame"]) == ("s", *store.origin(k))
        assert "energy_spread" not in atoms.info
    # It is a data set with the same labels.
    convert([target], tmp_path / "again", log=lambda line: None)
    np.testing.assert_allclose(Store.open(tmp_path / "again").gather(np.arange(6)).energy, labels.energy)


def test_stress_of_crystals_without_labels_of_it(tmp_path, members, potential, crystal):
    frames = frames_of([crystal], potential)
    frames.stress[:] = np.nan
    store = write_store(tmp_path / "s", frames)
    assert main(["evaluate", members[0], str(store.path), "--predictions", str(tmp_path / "p.xyz"), *CPU]) == 0
    atoms = ase.io.read(tmp_path / "p.xyz")
    assert "stress" not in atoms.calc.results
    np.testing.assert_allclose(atoms.info["predicted_stress"], exact(members[0], crystal)[2], atol=1e-9)


@pytest.mark.nightly
def test_an_ensemble_has_means_and_spreads(tmp_path, capsys, members, store):
    target, given = tmp_path / "p.xyz", [word for path in members for word in ("--model", path)]
    assert main(["evaluate", *given, str(store.path), "--predictions", str(target), "--json", *CPU]) == 0
    numbers = json.loads(capsys.readouterr().out)["sets"][store.path.name]
    frames = ase.io.read(target, ":")
    energy_errors, energy_spreads, force_errors, force_spreads = [], [], [], []
    for atoms in frames:
        found = [exact(path, atoms) for path in members]
        energies, forces = np.array([one[0] for one in found]), np.array([one[1] for one in found])
        spread = np.sqrt(((forces - forces.mean(0)) ** 2).sum(-1).sum(0) / 2)
        assert atoms.info["predicted_energy"] == pytest.approx(energies.mean(), abs=1e-7)
        assert atoms.info["energy_spread"] == pytest.approx(energies.std(ddof=1), abs=1e-7)
        np.testing.assert_allclose(atoms.arrays["predicted_forces"], forces.mean(0), atol=1e-7)
        np.testing.assert_allclose(atoms.arrays["forces_spread"], spread, atol=1e-7)
        energy_errors.append(abs(energies.mean() - atoms.get_potential_energy()) / len(atoms))
        energy_spreads.append(energies.std(ddof=1) / len(atoms))
        force_errors += np.linalg.norm(forces.mean(0) - atoms.get_forces(), axis=1).tolist()
        force_spreads += spread.tolist()
    for kind, errors, spreads in (
        ("energy", energy_errors, energy_spreads),
        ("forces", force_errors, force_spreads),
    ):
        shown = numbers[f"{kind}_spread"]
        assert shown["count"] == len(errors)
        assert shown["correlation"] == pytest.approx(np.corrcoef(errors, spreads)[0, 1], abs=1e-4)
        assert shown["rms_spread"] == pytest.approx(1000 * np.sqrt(np.mean(np.square(spreads))), rel=1e-4)
        assert shown["rms_error"] == pytest.approx(1000 * np.sqrt(np.mean(np.square(errors))), rel=1e-4)


def test_energy_writes_results_under_ases_names(tmp_path, capsys, members, ethanol, crystal):
    ethanol.info |= {"REF_energy": -3.5, "name": "first"}
    ethanol.arrays["tags_of_mine"] = np.arange(len(ethanol))
    source, target = tmp_path / "in.xyz", tmp_path / "out.xyz"
    ase.io.write(source, [ethanol, crystal], format="extxyz")
    command = ["energy", str(source), "--model", members[0], "-o", str(target), "--device", "cpu"]
    assert main(command) == 0
    assert f"wrote {target}: 2 structures" in capsys.readouterr().err
    molecule, solid = ase.io.read(target, ":")
    calculator = Calculator(members[0], dtype="float64", device="cpu")
    for found, atoms in zip((molecule, solid), ase.io.read(source, ":"), strict=True):
        atoms.calc = calculator
        assert found.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-8)
        np.testing.assert_allclose(found.get_forces(), atoms.get_forces(), atol=1e-8)
    np.testing.assert_allclose(solid.get_stress(), atoms.get_stress(), atol=1e-9)
    assert "stress" not in molecule.calc.results
    assert (molecule.info["REF_energy"], molecule.info["name"]) == (-3.5, "first")
    np.testing.assert_array_equal(molecule.arrays["tags_of_mine"], np.arange(9))
    # Results of an earlier run are replaced, and the charge that was used is written.
    several = [word for path in members for word in ("--model", path)]
    final = tmp_path / "final.xyz"
    assert main(["energy", str(target), *several, "--charge", "1", "-o", str(final), "--device", "cpu"]) == 0
    again = ase.io.read(final, 0)
    energies = [
        Calculator(path, dtype="float64", device="cpu", charge=1).get_potential_energy(again) for path in members
    ]
    assert again.calc.results["energy"] == pytest.approx(np.mean(energies), abs=1e-7)
    assert again.info["energy_spread"] == pytest.approx(np.std(energies, ddof=1), abs=1e-7)
    assert again.arrays["forces_spread"].shape == (9,)
    assert again.info["charge"] == 1


def test_files_are_kept_and_named_rightly(tmp_path, capsys, members, ethanol, store):
    source, there = tmp_path / "in.xyz", tmp_path / "there.xyz"
    ase.io.write(source, ethanol, format="extxyz")
    there.write_text("mine")
    for command in (
        ["energy", str(source), "--model", members[0], "-o"],
        ["evaluate", members[0], str(store.path), "--predictions"],
    ):
        assert main([*command, str(there)]) == 2
        assert "output files must not exist" in capsys.readouterr().err
        assert there.read_text() == "mine"
        assert main([*command, "out.json"]) == 2
        assert "must be a file of extended XYZ, .xyz or .extxyz, got 'out.json'" in capsys.readouterr().err
        assert main([*command, str(there), "--overwrite", "--device", "cpu"]) == 0
        assert len(ase.io.read(there, ":")) in (1, 24)
        there.write_text("mine")
