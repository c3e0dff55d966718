"""What the benchmark of a protein and a ligand reads off the files of a run."""

import numpy as np
import pytest
from openmm import app, unit
from scipy.spatial.transform import Rotation

from benchmarks.protein_ligand import observed, superposed


def test_superposition_undoes_rotations_and_translations():
    random = np.random.default_rng(2)
    reference = random.normal(size=(9, 3)) * 5
    frames = np.stack([reference @ turn.as_matrix() + 7 for turn in Rotation.random(4, random)])
    frames[:, 8] += 3.0  # not one of the atoms that are superposed
    moved = superposed(frames, reference, list(range(8)))
    np.testing.assert_allclose(moved[:, :8], np.broadcast_to(reference[:8], (4, 8, 3)), atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(moved[:, 8] - reference[8], axis=1), np.sqrt(27), atol=1e-9)


def test_a_ligand_that_moves_in_its_protein(tmp_path):
    """Four CA atoms that stay, with the whole turning, and a ligand of two atoms that moves 1 Å and stretches."""
    topology = app.Topology()
    chain = topology.addChain()
    for _ in range(4):
        topology.addAtom("CA", app.element.carbon, topology.addResidue("ALA", chain))
    residue = topology.addResidue("LIG", topology.addChain())
    for name in ("C1", "C2"):
        topology.addAtom(name, app.element.carbon, residue)
    pose = np.array([[0, 0, 0], [5, 0, 0], [0, 6, 0], [0, 0, 7], [3, 3, 3], [4.5, 3, 3]], dtype=float)
    end = pose + np.array([[0, 0, 0]] * 4 + [[0, 1, 0], [0.3, 1, 0]])
    turn = Rotation.from_rotvec([0.3, 0.2, -0.4]).as_matrix()
    with (tmp_path / "complex.start.pdb").open("w") as file:
        app.PDBFile.writeFile(topology, pose * unit.angstrom, file)
    with (tmp_path / "complex.dcd").open("wb") as file:
        dcd = app.DCDFile(file, topology, 0.002, interval=10)
        for frame in (pose, end @ turn, end @ turn, end @ turn):
            dcd.writeModel(frame * unit.angstrom)
    means = ("--", 50.0, 50.0, 12.0)  # the last interval is slow
    rows = "".join(f"{k * 10},{k * 0.02},-5.0,{290 + k}.0,1.{k},{means[k - 1]}\n" for k in range(1, 5))
    head = '#"Step","Time (ps)","Potential Energy (kJ/mole)","Temperature (K)","Density (g/mL)","Speed (ns/day)"\n'
    (tmp_path / "complex.log").write_text(head + rows)
    found = observed(tmp_path)
    assert found["pocket_rmsd"] == pytest.approx(np.sqrt((1 + 1.09) / 2), abs=2e-3)
    assert found["largest_pocket_rmsd"] == found["pocket_rmsd"]
    assert found["largest_shift"] == pytest.approx(np.hypot(1.0, 0.15), abs=2e-3)
    assert found["ca_rmsd"] < 2e-3
    assert found["longest_bond"] == pytest.approx(1.8 / 1.5, abs=1e-3)
    assert (found["picoseconds"], found["ns_day"], found["temperature_K"], found["density"]) == (
        0.08,
        50.0,
        293.5,
        1.35,
    )
