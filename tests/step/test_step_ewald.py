"""Captured steps with Ewald sums: audits, reports, cells that change, and sums that engines share."""

import numpy as np
import pytest
import torch
from model_kinds import coulomb

from torchmdx import Batch, CapturedStep, Ensemble, Potential, System, evaluate
from torchmdx.models.coulomb_cutoff import with_coulomb_cutoff, with_tight_sums
from torchmdx.models.priors.splitting import MESH_CUTOFF
from torchmdx.step import audit
from torchmdx.step.change import grow

ACCURACY = 1e-4


@pytest.fixture
def potential(make_potential):
    def make(dtype=torch.float64, accuracy=ACCURACY, method="ewald", **settings) -> Potential:
        prior = coulomb(periodic=method, accuracy=accuracy, cutoff=5.0, strength=100.0)
        return make_potential(dtype, model="tensornet2", priors=[lambda: prior], **settings)

    return make


def exact(potential, atoms):
    return evaluate(with_tight_sums(potential), System.from_ase(atoms), stress=True)


@pytest.mark.nightly_for("slab-ewald-torch.float32", "bare_slab", "slab-pme-torch.float32")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("name", "method"),
    [("crystal", "ewald"), ("slab", "ewald"), ("bare_slab", "ewald"), ("crystal", "pme"), ("slab", "pme")],
)
def test_a_step_is_as_accurate_as_requested(potential, dtype, name, method, request):
    """Compared with the exact sum, not with one of the same splitting."""
    atoms = request.getfixturevalue(name)
    step = CapturedStep(
        potential(dtype, method=method), System.from_ase(atoms), stress=True, energies=True, audit_every=1
    )
    for seed in range(3):
        atoms.rattle(0.04, seed=seed)
        found, wanted = step(atoms.positions, atoms.cell.array), exact(potential(), atoms)
        scale = float(wanted.forces.norm())
        assert np.linalg.norm(found.forces - wanted.forces.numpy()) < 2 * ACCURACY * scale
        if not np.isnan(found.stress).any():
            np.testing.assert_allclose(
                found.stress[0], wanted.stress[0], rtol=0, atol=1e-3 * float(wanted.stress.abs().max())
            )
    assert 0 < step.error < 2 * ACCURACY


def test_a_cell_that_outgrows_its_vectors_costs_no_edges(potential, crystal, caplog):
    """As after a replay that found it."""
    caplog.set_level("INFO", logger="torchmdx")
    step = CapturedStep(potential(), System.from_ase(crystal))
    found, capacity = step(crystal.positions).energy, step.search.capacity
    for scale, grown in ((1.05, False), (1 / 1.05, True)):
        step.ordered.cell.mul_(scale)
        grow(step, int(step.search.edges.needed))
        assert (step.search.capacity > capacity) == grown
        assert ("neighbour list needed" in caplog.text) == grown
        assert "the cell has outgrown the vectors of an Ewald sum" in caplog.text
        assert step.engine.potential.priors[0].kept.lists == []
    np.testing.assert_allclose(step(crystal.positions).energy, found, rtol=0, atol=1e-10)
    assert step.num_recoveries == 2


def test_a_step_chooses_a_free_cutoff_by_size(potential, crystal, ethanol):
    free = with_coulomb_cutoff(potential(), None, "ewald")
    small, large = crystal.repeat(2), crystal.repeat(14)
    assert CapturedStep(free, System.from_ase(small)).search.cutoff == 7.0
    assert 7.0 < CapturedStep(free, System.from_ase(crystal.repeat(6))).search.cutoff < 9.0
    assert CapturedStep(free, System.from_ase(large)).search.cutoff == MESH_CUTOFF
    assert CapturedStep(free, System.from_ase(ethanol)).search.cutoff == free.config.cutoff
    given = with_coulomb_cutoff(potential(), 8.0, "ewald")
    assert CapturedStep(given, System.from_ase(small)).search.cutoff == 8.0
    found, wanted = CapturedStep(free, System.from_ase(small))(small.positions), exact(potential(), small)
    np.testing.assert_allclose(found.forces, wanted.forces, rtol=0, atol=2 * ACCURACY * float(wanted.forces.norm()))


def test_an_audit_finds_a_sum_that_is_too_coarse(potential, crystal, monkeypatch):
    coarse = potential(accuracy=1e-2)
    monkeypatch.setattr(audit, "SUM_ERRORS", 0.0)
    step = CapturedStep(coarse, System.from_ase(crystal), audit_every=1)
    with pytest.raises(Exception, match="forces differ"):
        step(crystal.positions)


def test_the_report_states_accuracy_splitting_and_vectors(potential, crystal, ethanol):
    step = CapturedStep(potential(), System.from_ase(crystal))
    step(crystal.positions)
    prior = step.engine.potential.priors[0]
    said = str(step.report())
    assert "accuracy 0.0001: α" in said
    assert (
        f"pairs up to 5 Å, vectors up to {prior.splitting.longest:.2f} 1/Å, {prior.kept.latest.count} of them" in said
    )
    assert step.report().coulomb_cutoff is None
    on_mesh = CapturedStep(potential(method="pme"), System.from_ase(crystal))
    assert str(on_mesh.report().ewald).endswith("pairs up to 5 Å, and a mesh, chosen at the first evaluation")
    on_mesh(crystal.positions)
    assert str(on_mesh.report().ewald).endswith("a mesh of 16 x 16 x 16 points, splines of order 7")
    assert CapturedStep(potential(), System.from_ase(ethanol)).report().ewald is None
    members = [potential(), potential(accuracy=1e-3)]
    both = CapturedStep(Ensemble(members), System.from_ase(crystal)).report().ewald
    assert both.count("accuracy") == 2


@pytest.mark.parametrize(
    ("dtype", "method"), [(torch.float64, "ewald"), (torch.float32, "ewald"), (torch.float32, "pme")], ids=str
)
def test_vectors_follow_a_cell_until_it_has_changed_too_far(potential, dtype, method, crystal):
    step = CapturedStep(potential(dtype, method=method), System.from_ase(crystal), stress=True)
    lists = []
    for factor in (1.0, 1.01, 0.97, 1.2, 1.21, 0.8):
        atoms = crystal.copy()
        atoms.set_cell(crystal.cell.array * factor, scale_atoms=True)
        found, wanted = step(atoms.positions, atoms.cell.array), exact(potential(), atoms)
        lists.append(step.engine.potential.priors[0].kept.latest)
        error = np.linalg.norm(found.forces - wanted.forces.numpy())
        assert error < 2 * ACCURACY * float(wanted.forces.norm())
        stress = np.abs(found.stress - wanted.stress[0].numpy()).max()
        assert stress < 1e-3 * float(wanted.stress.abs().max())
    assert lists[0] is lists[1] is lists[2]
    assert lists[3] is lists[4] is lists[5]
    assert lists[2] is not lists[3]


def test_energies_are_smooth_in_the_cell_while_a_list_serves(potential, crystal):
    """A list that changed with every cell would let energies jump by its accuracy."""
    step = CapturedStep(potential(accuracy=1e-2), System.from_ase(crystal))
    factors = 1 + np.linspace(0, 0.02, 41)
    energies = []
    for factor in factors:
        cell = crystal.cell.array * factor
        energies.append(float(step(crystal.positions @ np.linalg.solve(crystal.cell.array, cell), cell).energy[0]))
    third = np.diff(energies, 3)
    assert np.abs(third).max() < 1e-5


def test_another_structure_in_the_same_step(potential, crystal):
    step = CapturedStep(potential(), System.from_ase(crystal))
    step(crystal.positions)
    longer = crystal.copy()
    longer.set_cell(crystal.cell.array * [[1.5], [1], [1]], scale_atoms=True)
    step.assign(System.from_ase(longer))
    found, wanted = step(longer.positions), exact(potential(), longer)
    assert float(found.energy[0]) == pytest.approx(float(wanted.energy), abs=1e-3)
    flat = longer.copy()
    flat.pbc = (True, True, False)
    step.assign(System.from_ase(flat))
    found, wanted = step(flat.positions), exact(potential(), flat)
    assert float(found.energy[0]) == pytest.approx(float(wanted.energy), abs=1e-3)
    flat.pbc = (True, False, False)
    step.assign(System.from_ase(flat))
    with pytest.raises(ValueError, match="an Ewald sum needs two or three periodic directions"):
        step(flat.positions)


def test_a_batch_with_molecules(potential, crystal, slab, ethanol):
    structures = [crystal, ethanol, slab]
    step = CapturedStep(potential(torch.float32), [System.from_ase(atoms) for atoms in structures], energies=True)
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in structures])
    wanted = evaluate(with_tight_sums(potential()), batch)
    found = step(np.concatenate([atoms.positions for atoms in structures]))
    np.testing.assert_allclose(found.energies, wanted.energies, rtol=0, atol=1e-2)
    assert np.linalg.norm(found.forces - wanted.forces.numpy()) < 2 * ACCURACY * float(wanted.forces.norm())


METHODS = pytest.mark.parametrize("method", ["ewald", "pme"])


def on_gpu(potential, atoms, method, **options):
    single = potential(torch.float32, method=method).to("cuda")
    return CapturedStep(single, System.from_ase(atoms), mode="graph", stress=True, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["crystal", "slab"])
@METHODS
def test_a_graph_is_as_accurate_as_requested_and_gives_equal_bits(potential, name, method, request):
    atoms = request.getfixturevalue(name)
    step = on_gpu(potential, atoms, method)
    for seed in range(3):
        atoms.rattle(0.04, seed=seed)
        found, wanted = step(atoms.positions, atoms.cell.array), exact(potential(), atoms)
        again = step(atoms.positions, atoms.cell.array)
        assert np.linalg.norm(found.forces - wanted.forces.numpy()) < 2 * ACCURACY * float(wanted.forces.norm())
        stress = np.abs(found.stress[0] - wanted.stress[0].numpy()).max()
        assert stress < 1e-3 * float(wanted.stress.abs().max())
        assert np.array_equal(again.forces, found.forces)
        assert np.array_equal(again.stress, found.stress)
    assert step.mode == "graph"


@pytest.mark.gpu
@METHODS
def test_a_graph_recovers_from_a_cell_that_has_changed_too_far(potential, method, crystal):
    step = on_gpu(potential, crystal, method)
    for factor in (1.0, 1.02, 1.2, 0.9):
        atoms = crystal.copy()
        atoms.set_cell(crystal.cell.array * factor, scale_atoms=True)
        found, wanted = step(atoms.positions, atoms.cell.array), exact(potential(), atoms)
        assert np.linalg.norm(found.forces - wanted.forces.numpy()) < 2 * ACCURACY * float(wanted.forces.norm())
    assert step.num_recoveries >= 1
    assert step.mode == "graph"


@pytest.mark.gpu
@METHODS
def test_a_graph_of_several_systems(potential, method, crystal, ethanol):
    structures = [System.from_ase(atoms) for atoms in (crystal, ethanol, crystal)]
    batch = Batch.from_systems(structures)
    step = CapturedStep(potential(torch.float32, method=method).to("cuda"), batch, mode="graph", energies=True)
    wanted = evaluate(with_tight_sums(potential()), batch)
    for _ in range(3):
        found = step(batch.positions.numpy())
    np.testing.assert_allclose(found.energies, wanted.energies, rtol=0, atol=1e-2)
    assert np.linalg.norm(found.forces - wanted.forces.numpy()) < 2 * ACCURACY * float(wanted.forces.norm())
