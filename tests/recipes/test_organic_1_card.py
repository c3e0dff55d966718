"""The model card's machinery in recipes/organic_1: bonds that dynamics watch, start structures, blocks of the page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "organic_1"
START = RECIPE / "dynamics_start.xyz"


@pytest.fixture
def ethanol(recipe, tmp_path):
    """Ethanol as dynamics.py reads it."""
    import ase.build
    import ase.io

    atoms = ase.build.molecule("CH3CH2OH")
    atoms.info = {"charge": 0, "molecule": "CCO"}
    ase.io.write(tmp_path / "ethanol.xyz", atoms, format="extxyz")
    (molecule,) = recipe("dynamics_molecules").read_molecules(tmp_path / "ethanol.xyz")
    return molecule


def test_bonds_and_masses_of_ethanol(ethanol):
    joined = sorted("".join(sorted("CHO"[[6, 1, 8].index(ethanol.numbers[k])] for k in bond)) for bond in ethanol.bonds)
    assert joined == ["CC", "CH", "CH", "CH", "CH", "CH", "CO", "HO"]
    assert ethanol.masses.sum() == pytest.approx(2 * 12.011 + 15.999 + 6 * 1.008, abs=0.01)
    assert np.all(ethanol.masses[ethanol.numbers == 1] == 3.0)
    methyl = min(ethanol.masses[ethanol.numbers == 6])
    assert methyl == pytest.approx(12.011 - 3 * (3.0 - 1.008), abs=0.01)


def test_a_bond_is_broken_beyond_1_6_of_its_length(ethanol):
    hydrogen = int(np.flatnonzero(ethanol.numbers == 1)[-1])
    (other,) = {int(k) for bond in ethanol.bonds if hydrogen in bond for k in bond} - {hydrogen}
    along = ethanol.positions[hydrogen] - ethanol.positions[other]
    for factor, broken in ((1.0, False), (1.55, False), (1.65, True)):
        moved = ethanol.positions.copy()
        moved[hydrogen] = ethanol.positions[other] + factor * along
        fault = ethanol.check(moved)
        assert (fault is not None and "broken" in fault) == broken, (factor, fault)


def test_a_bond_is_formed_by_far_atoms_alone(ethanol):
    carbons = [int(k) for k in np.flatnonzero(ethanol.numbers == 6)]
    oxygen = int(np.flatnonzero(ethanol.numbers == 8)[0])
    of_oxygen = [bond for bond in ethanol.bonds if oxygen in bond]
    methyl = next(k for k in carbons if not any(k in bond for bond in of_oxygen))
    far = next(int(k) for bond in ethanol.bonds if methyl in bond for k in bond if ethanol.numbers[k] == 1)
    towards = ethanol.positions[oxygen] - ethanol.positions[far]
    moved = ethanol.positions.copy()
    moved[[far]] = ethanol.positions[oxygen] - 1.0 * towards / np.linalg.norm(towards)
    ethanol.lengths[:] = 10.0  # so that no bond counts as broken
    fault = ethanol.check(moved)
    assert fault is not None
    assert "formed" in fault
    squeezed = ethanol.positions * 0.9  # atoms two bonds apart within bonding distance or not: no new bond
    assert ethanol.check(squeezed) is None


def test_ethane_of_the_time_step_vibrates_as_gfn2_does(recipe):
    pytest.importorskip("tblite", reason="needs tblite")
    ethane = recipe("time_step").Ethane(3.0, 0.0, seed=1)  # at rest
    assert ethane.masses.ravel() == pytest.approx([6.0] * 2 + [3.0] * 6, abs=0.05)
    assert len(ethane.bonds) == 7
    assert all(ethane.step(0.2) for _ in range(50))
    assert np.abs(ethane.f).max() < 1.0
    lengths = np.linalg.norm(ethane.x[ethane.bonds[:, 0]] - ethane.x[ethane.bonds[:, 1]], axis=1)
    assert 1.0 < lengths.min() < 1.15
    ethane.x[0] -= 1.0  # away from its hydrogens
    assert not ethane.step(0.2)
    ethane.begin()
    assert ethane.step(0.2)


def test_weights_are_known_by_their_numbers_not_by_their_names(recipe, tmp_path):
    import torch

    import torchmdx

    def saved(seed, name):
        torch.manual_seed(seed)
        potential = torchmdx.Potential(torchmdx.TensorNetConfig(num_layers=1, num_channels=8, num_radial=8))
        potential.card = replace(potential.card, name=name)
        torchmdx.save(potential, tmp_path / f"{seed}{name}.safetensors")
        return tmp_path / f"{seed}{name}.safetensors"

    files = [saved(0, "one"), saved(0, "another"), saved(1, "one")]
    first, renamed, other = (recipe("dynamics_molecules").weights_hash(file) for file in files)
    assert files[0].read_bytes() != files[1].read_bytes()
    assert first == renamed != other


def test_start_structures_are_test_molecules_of_all_elements():
    import ase.io

    frames = ase.io.read(START, index=":")
    subsets = dict(line.rsplit(" ", 1) for line in (RECIPE / "smiles.txt").read_text().splitlines())
    assert len(frames) == 20
    assert {subsets[str(atoms.info["molecule"])] for atoms in frames} == {"test"}
    assert {int(z) for atoms in frames for z in atoms.numbers} == {1, 6, 7, 8, 9, 16, 17}
    assert all(10 <= len(atoms) <= 40 for atoms in frames)
    charges = [int(atoms.info["charge"]) for atoms in frames]
    assert sorted(q for q in charges if q) == [-1, 1, 1]
    for atoms, charge in zip(frames, charges, strict=True):
        assert (atoms.numbers.sum() - charge) % 2 == 0


def test_the_card_says_what_was_measured(recipe, tmp_path):
    """Numbers between marks are those of the JSON files: none was written by hand."""
    page = tmp_path / "card.md"
    text = (ROOT / "docs" / "organic-1.md").read_text()
    emptied = re.sub(r"(<!-- begin:[^\n]*-->\n).*?(?=<!-- end:)", r"\1", text, flags=re.DOTALL)
    assert len(emptied) < len(text)
    page.write_text(emptied)
    left = recipe("card_page").render(page, RECIPE / "card")
    assert set(left) <= {"dynamics"}  # which a GPU measures
    if left:
        pytest.skip("card/dynamics.json is not there")
    assert page.read_text() == text


def test_the_pictures_of_the_card_are_there():
    text = (ROOT / "docs" / "organic-1.md").read_text()
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 5
    for name in pictures:
        assert (ROOT / "docs" / name).read_bytes().startswith(b"\x89PNG")


def test_errors_of_frames(recipe):
    """Against loops over frames."""
    module = recipe("card_errors")
    rng = np.random.default_rng(0)
    counts, energy = np.array([2, 3, 2, 2, 2]), rng.normal(size=5)
    numbers = np.array([1, 1, 8, 1, 1, 1, 1, 1, 1, 1, 1])
    forces, wrong = rng.normal(size=(11, 3)), rng.normal(size=(11, 3))
    error = rng.normal(size=5)
    frames = module.Compared(
        counts, numbers, np.zeros(5), energy, energy + error, forces, forces + wrong,
        np.repeat(np.arange(5), counts), np.array(["molecules"] * 5), np.array([0, 1, 0, 0, 0]),
    )  # fmt: skip
    found = module.summary(frames, np.array([True, True, True, True, True]))
    assert found["forces_mae"] == pytest.approx(1e3 * np.mean([abs(w) for row in wrong for w in row]))
    assert found["energy_mae"] == pytest.approx(1e3 * np.mean([abs(e) / n for e, n in zip(error, counts, strict=True)]))
    same = [error[k] for k in (0, 2, 3, 4)]
    relative = np.mean([abs(e - np.mean(same)) for e in same]) / (4.184 / 96.48533212)
    assert found["relative_mae"] == pytest.approx(relative, rel=1e-6)
    assert found["forces_rmse"] == pytest.approx(1e3 * np.sqrt(np.mean(wrong**2)))
    assert json.dumps(found)
    (pairs, water) = sorted(module.by_composition(frames, np.ones(5, bool)), key=lambda row: row["atoms"])
    kcal = [e / (4.184 / 96.48533212) for e in same]
    assert (pairs["formula"], pairs["frames"], pairs["atoms"]) == ("H2", 4, 2)
    assert (water["formula"], water["frames"], water["atoms"]) == ("H2O", 1, 3)
    assert (pairs["lowest"], pairs["highest"]) == pytest.approx((min(kcal), max(kcal)), rel=1e-6)
    assert pairs["energy_mae"] == pytest.approx(1e3 * np.mean([abs(e) / 2 for e in same]))


def test_frames_of_an_ion_alone_are_counted(recipe, tmp_path):
    """Of the same atoms in any order and the same charge, without others."""
    pytest.importorskip("rdkit", reason="needs RDKit")
    module = recipe("card_ions")
    z = np.array([[8, 1, 0, 0], [1, 8, 0, 0], [8, 1, 0, 0], [8, 1, 1, 0], [8, 0, 0, 0], [9, 1, 0, 0]], np.int8)
    np.savez(tmp_path / "train-0.npz", z=z, Q=np.array([-1.0, -1.0, 1.0, -1.0, -1.0, -1.0]))
    np.savez(tmp_path / "train-1.npz", z=z[:1, :2], Q=np.array([-1.0]))
    hydroxide = module.Structure(np.array([8, 1]), np.zeros((2, 3)), -1)
    assert module.frames_like([tmp_path / "train-0.npz"], hydroxide) == 2
    assert module.frames_like(sorted(tmp_path.glob("*.npz")), hydroxide) == 3


def test_molecules_of_one_world_feel_nothing_of_each_other(recipe, tmp_path):
    """Energy of ions and a neutral molecule in one context: that of each alone, with its own charge."""
    import argparse

    import torch
    from openmm import unit

    import torchmdx
    from torchmdx.structures.units import KJ_PER_MOL

    torch.manual_seed(0)
    potential = torchmdx.Potential(torchmdx.TensorNetConfig(num_layers=1, num_channels=8, num_radial=8))
    checkpoint = tmp_path / "small.safetensors"
    torchmdx.save(potential, checkpoint)
    dynamics = recipe("dynamics")
    molecules = [m for m in dynamics.read_molecules(START) if m.charge or len(m.numbers) == 11]
    assert sorted(m.charge for m in molecules) == [-1, 0, 1, 1]
    args = argparse.Namespace(checkpoint=str(checkpoint), temperature=300.0, timestep=2.5, seed=1, transport="auto")
    world = dynamics.World(molecules, args)
    centred = [m.positions - np.average(m.positions, axis=0, weights=m.masses) for m in molecules]
    world.place(centred, None, args)
    together = world.context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
    exact = potential.double()
    alone = [
        float(torchmdx.evaluate(exact, torchmdx.System.create(m.positions, m.numbers, charge=m.charge)).energy)
        for m in molecules
    ]
    wrong = [
        float(torchmdx.evaluate(exact, torchmdx.System.create(m.positions, m.numbers, charge=0)).energy)
        for m in molecules
    ]
    assert together * KJ_PER_MOL == pytest.approx(sum(alone), abs=1e-4)
    assert abs(sum(wrong) - sum(alone)) > 1e-3  # so that a wrong charge would have been seen


def test_dynamics_that_are_broken_off_leave_their_record(recipe, tmp_path):
    import argparse
    import json

    import torch

    import torchmdx

    torch.manual_seed(0)
    potential = torchmdx.Potential(torchmdx.TensorNetConfig(num_layers=1, num_channels=8, num_radial=8))
    torchmdx.save(potential, tmp_path / "small.safetensors")
    dynamics = recipe("dynamics")
    molecules = dynamics.read_molecules(START)[:1]
    args = argparse.Namespace(
        checkpoint=str(tmp_path / "small.safetensors"), temperature=300.0, timestep=0.1, seed=1, transport="auto",
        steps=50, check_every=1,
    )  # fmt: skip
    run = dynamics.Run(molecules, args)
    kept = []
    run.to_end(lambda: kept.append(dynamics.result(molecules, run, args, 1)["reached_ps"]))
    assert kept == pytest.approx([0.002, 0.004])  # every twenty checks
    cards = {name: json.loads((RECIPE / "card" / f"{name}.json").read_text()) for name in ("dynamics", "training")}
    rows = cards["dynamics"]["molecules"]
    for row in rows:
        row |= {"broken": row is rows[0], "fault": "bond C0–H1 broken", "ended_ps": 20.0, "reached_ps": 1000.0}
    cards["dynamics"]["reached_ps"] = 1000.0
    text = recipe("card_page")._dynamics(cards)
    assert "19 of 20 molecules kept every bond and formed no new one, 19 for 1000 ps (" in text
    assert "stopped early" not in text
    cards["dynamics"]["reached_ps"] = rows[1]["reached_ps"] = rows[2]["reached_ps"] = 250.0
    text = recipe("card_page")._dynamics(cards)
    assert "no new one, 17 for 1000 ps and 2 for 250 ps (" in text
    assert "**Those of less than 1000 ps were stopped early.**" in text


def test_dynamics_in_parts_are_those_of_all_molecules(recipe):
    import json

    part_of, joined = (getattr(recipe("dynamics_molecules"), name) for name in ("part_of", "joined"))
    molecules = recipe("dynamics_molecules").read_molecules(START)
    parts = [part_of(molecules, f"{k}/7") for k in range(1, 8)]
    assert sorted(m.name for part in parts for m in part) == sorted(m.name for m in molecules)
    assert {len(part) for part in parts} == {2, 3}
    assert max(len({m.charge for m in part}) for part in parts) <= 2
    for wrong in ("0/2", "3/2", "1/21"):
        with pytest.raises(ValueError, match=wrong):
            part_of(molecules, wrong)
    whole = json.loads((RECIPE / "card" / "dynamics.json").read_text())
    rows = {row["molecule"]: row for row in whole["molecules"]}
    names = [m.name for m in molecules]
    whole |= {"reached_ps": 1000.0, "seconds": 1.0}
    for m in molecules:
        rows[m.name]["reached_ps"] = 500.0 if m in parts[3] else 1000.0
    records = [
        whole | {"molecules": [rows[m.name] for m in part], "atoms": sum(len(m.numbers) for m in part)}
        for part in parts
    ]
    records[3] = records[3] | {"reached_ps": 500.0, "ns_per_day": 12.0, "seconds": 9.0}
    found = joined(records, names)
    slow = {m.name for m in parts[3]}
    wanted = [row | {"reached_ps": 500.0 if row["molecule"] in slow else 1000.0} for row in whole["molecules"]]
    assert found["molecules"] == wanted
    assert (found["atoms"], found["contexts"]) == (whole["atoms"], 7)
    assert (found["reached_ps"], found["ns_per_day"], found["seconds"]) == (500.0, 12.0, 9.0)
    with pytest.raises(ValueError, match="each of the 20 molecules once, got 18"):
        joined(records[1:], names)
    with pytest.raises(ValueError, match="agree in 'temperature', got 300.0 and 310.0"):
        joined([records[0], records[1] | {"temperature": 310.0}], names)
    cards = {name: json.loads((RECIPE / "card" / f"{name}.json").read_text()) for name in ("dynamics", "training")}
    cards["dynamics"] = found
    assert "489 atoms in 7 contexts" in recipe("card_page")._dynamics(cards)


def test_a_line_of_a_proton_is_right_up_to_the_first_error(recipe):
    pytest.importorskip("rdkit", reason="needs RDKit")
    right_to = recipe("card_protons").right_to
    lengths = [1.0, 1.1, 1.2, 1.3]
    assert right_to(lengths, np.array([0.0, 0.5, 3.0, 0.1])) == 1.1
    assert right_to(lengths, np.array([0.0, 0.5, 0.9, 0.1])) == 1.3


def test_hydrogen_bonds_are_found_across_three_bonds_or_more(recipe):
    """Malonaldehyde: the proton of one oxygen and the other; not ethane-1,1-diol's, which are two bonds apart."""
    pytest.importorskip("rdkit", reason="needs RDKit")
    from rdkit import Chem
    from rdkit.Chem import AllChem

    module = recipe("card_protons")
    found = {}
    for smiles in ("O=C/C=C\\O", "CC(O)O"):
        mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
        AllChem.EmbedMolecule(mol, randomSeed=1)
        found[smiles] = module.hydrogen_bonds(mol, mol.GetConformer().GetPositions())
    assert found["CC(O)O"] == []
    ((apart, donor, proton, acceptor),) = found["O=C/C=C\\O"]
    assert (donor, acceptor) == (4, 0)
    assert 1.4 < apart < 6.0
    assert proton > 4
