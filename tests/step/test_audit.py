"""Audits: wrong results of every kind are found, right ones pass, and the report says what was compared."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from faults import change_outputs, spoil

from torchmdx import Batch, Ensemble, System
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.step import change, drawn, findings
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.domain_step import DomainStep
from torchmdx.step.results import AuditError, GraphRefused

SMALL = dict(num_channels=4, num_layers=1, num_radial=4, cutoff=3.0)


def silicon(*repeats) -> System:
    atoms = bulk("Si", cubic=True) * repeats
    atoms.rattle(0.1, seed=1)
    return System.from_ase(atoms)


WATER = System.from_ase(molecule("H2O"))


def set_to_zero(first):
    def changed(outputs):
        forces = outputs.forces.clone()
        forces[first:] = 0
        return replace(outputs, forces=forces)

    return changed


def flipped(outputs):
    return replace(outputs, energies=outputs.energies.flip(0))


FAULTS = {
    "an energy 100 eV off": (lambda o: replace(o, energy=o.energy + 100), "its energy differs"),
    "a stress of the wrong sign": (lambda o: replace(o, stress=-o.stress), "its stress times volume differs"),
    "shuffled energies of atoms": (flipped, "the energies of its atoms differ"),
    "no forces": (set_to_zero(0), "its forces differ"),
    "no forces behind the first molecule": (set_to_zero(3), "its forces differ"),
}


def audited(potential, structure, fault=None, **options):
    step = CapturedStep(potential, structure, energies=True, audit_every=1, mode="eager", **options)
    if fault is not None:
        change_outputs(step, fault)
    step(step.batch.positions.cpu().numpy())
    return step


@pytest.fixture
def small_limits(monkeypatch):
    """The structures of these tests are as large as those of thousands of atoms."""
    monkeypatch.setattr(drawn, "MOST_ATOMS", 12)
    monkeypatch.setattr(drawn, "MOST_WHOLE", 40)
    monkeypatch.setattr(findings, "ENOUGH_AROUND", 300)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("repeats", [(1, 1, 1), (5, 5, 4)], ids=["few", "800"])
def test_wrong_results_are_found(make_potential, fault, repeats, device):
    """In a batch whose first system is small and right; 800 atoms are evaluated as a whole."""
    potential = make_potential(torch.float32, **SMALL).to(device)
    structure = Batch.of([WATER, silicon(*repeats)])
    assert audited(potential, structure, stress=True).error < 1e-4
    wrong, text = FAULTS[fault]
    with pytest.raises(AuditError, match=f"^the audit of evaluation 1: .*{text} from the exact model's by"):
        audited(potential, structure, wrong, stress=True)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("fault", [name for name in FAULTS if "stress" not in name])
def test_wrong_results_of_large_systems_are_found(make_potential, fault, device):
    potential = make_potential(torch.float32, **SMALL).to(device)
    structure = Batch.of([WATER, silicon(2, 2, 2)])
    report = audited(potential, structure).report()
    assert "energy, energies of atoms and forces of 3 atoms in system 0; forces on " in report.compared
    assert "of the 64 atoms of system 1, around atom" in report.compared
    assert report.not_compared.startswith("energy and the other atoms of the 64 atoms of system 1: the exact model is")
    with pytest.raises(AuditError, match="the audit of evaluation 1: "):
        audited(potential, structure, FAULTS[fault][0])


@pytest.mark.usefixtures("small_limits")
def test_each_audit_compares_other_atoms(make_potential):
    structure = silicon(2, 2, 2)
    step = CapturedStep(make_potential(torch.float32, **SMALL), structure, audit_every=1)
    said = []
    for _ in range(3):
        step(structure.positions)
        said.append(step.report().compared)
    assert len(set(said)) == 3
    step = CapturedStep(step.potential, structure, audit_every=1)
    step(structure.positions)
    assert step.report().compared == said[0]


def slab():
    atoms = bulk("NaCl", "rocksalt", 5.0, cubic=True) * (2, 2, 2)
    atoms.pbc, atoms.info["charge"] = (True, True, False), 1.0
    atoms.rattle(0.1, seed=2)
    return System.from_ase(atoms)


@pytest.mark.nightly_for("slab-float64", "crystal-float32")
@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("structure", [slab(), silicon(2, 2, 2)], ids=["slab", "crystal"])
def test_right_results_of_large_systems_pass(make_potential, structure, precision):
    dtype = getattr(torch, precision)
    members = [make_potential(dtype, seed=seed, priors=(ZBLConfig,), **SMALL) for seed in (0, 1)]
    members[1].reference_energies.copy_(members[0].reference_energies)
    for potential in (members[0], Ensemble(members), Ensemble(members, spread_factors=(3.0, 2.0))):
        assert audited(potential, structure).error < (1e-9 if precision == "float64" else 1e-5)
    assert audited(potential, WATER).error < (1e-9 if precision == "float64" else 1e-5)


@pytest.mark.usefixtures("small_limits")
def test_a_wrong_member_of_an_ensemble_is_seen_by_the_spread_of_few_atoms(make_potential):
    members = [make_potential(torch.float32, seed=seed, **SMALL) for seed in (0, 1)]
    members[1].reference_energies.copy_(members[0].reference_energies)
    with pytest.raises(AuditError, match="its forces differ"):
        audited(Ensemble(members), silicon(2, 2, 2), lambda o: replace(o, force_spread=1.01 * o.force_spread))


@pytest.mark.usefixtures("small_limits")
def test_what_knows_only_the_whole_structure_is_evaluated_up_to_a_size(make_potential):
    charged = make_potential(torch.float32, model="tensornet2", **SMALL)
    report = audited(charged, silicon(2, 2, 1)).report()
    assert report.compared.startswith("energy, energies of atoms and forces of 32 atoms in the whole structure")
    assert report.not_compared is None
    report = audited(charged, silicon(2, 2, 2)).report()
    assert report.error is None
    assert report.compared == "sums of forces and energies of atoms of every system"
    reason = "its charges depend on all atoms of a system, and the exact model is given at most 40 atoms as a whole"
    assert report.not_compared == f"the 64 atoms of system 0: {reason}"
    with pytest.raises(AuditError, match="the sum of its forces differs from zero"):
        audited(charged, silicon(2, 2, 2), set_to_zero(20))


@pytest.mark.usefixtures("small_limits")
def test_coulomb_energies_with_a_cutoff_have_an_environment(make_potential):
    """Of the reach of their cutoff, which is longer than the network's."""
    potential = make_potential(torch.float32, priors=(lambda: CoulombConfig(charges="given", cutoff=4.0),), **SMALL)
    atoms = bulk("NaCl", "rocksalt", 5.0, cubic=True) * (2, 2, 2)
    atoms.rattle(0.1, seed=2)
    atoms.set_initial_charges(np.where(atoms.numbers == 11, 0.8, -0.8))
    report = audited(potential, System.from_ase(atoms)).report()
    assert report.error < 1e-4
    assert "forces on" in report.compared
    step = CapturedStep(potential, System.from_ase(atoms), audit_every=1)
    step.potential.priors[0].config = CoulombConfig(charges="given", cutoff=4.0, dielectric=2.0)
    with pytest.raises(AuditError, match="its forces differ"):
        step(atoms.positions)


@pytest.mark.usefixtures("small_limits")
def test_a_large_domain_is_audited(make_potential):
    potential = make_potential(torch.float32, **SMALL)
    structure = silicon(3, 2, 2)
    step = DomainStep(potential, (True, True, True), audit_every=1)
    numbers = structure.atomic_numbers.numpy()
    step.assign(structure.positions.numpy(), numbers, 60, structure.cell.numpy(), num_total=len(numbers))
    for _ in range(3):
        step()
        assert step.step.error < 1e-5
    assert "of the 96 atoms of system 0" in step.step.report().compared
    spoil(step.step)
    with pytest.raises(AuditError, match="its forces differ"):
        step()


def test_structures_without_atoms_have_nothing_to_compare(make_potential):
    potential = make_potential(torch.float32, **SMALL)
    empty = System.create([], [])
    report = audited(potential, empty).report()
    assert (report.error, report.compared) == (None, None)
    assert report.not_compared == "a structure without atoms, which has nothing to compare"
    for others in ([empty, WATER], [empty, silicon(5, 5, 4)]):
        report = audited(potential, Batch.of(others)).report()
        assert report.error < 1e-4
        assert "in all 2 systems" in report.compared


def test_systems_that_were_not_drawn_are_counted(make_potential, monkeypatch):
    monkeypatch.setattr(drawn, "MOST_ATOMS", 12)
    step = audited(make_potential(torch.float32, **SMALL), Batch.of([WATER] * 30))
    assert step.report().not_compared == "26 systems of 30, which this audit did not draw"
    assert "of 12 atoms in systems " in step.report().compared


def test_the_engine_that_replaces_a_wrong_one_is_audited(make_potential, monkeypatch):
    potential, structure = make_potential(torch.float32, **SMALL), silicon(1, 1, 1)
    step = CapturedStep(potential, structure)
    wanted = step(structure.positions).forces
    spoil(step)
    step.audit_owed = True
    np.testing.assert_allclose(step(structure.positions).forces, wanted, atol=1e-5)
    assert step.report().engine == "exact"
    assert not step.audit_owed
    assert step.error < 1e-4
    choose = change.exact_engine_for

    def wrong(*given, **options):
        engine = choose(*given, **options)
        run = engine.run
        engine.run = lambda *inputs, **settings: set_to_zero(0)(run(*inputs, **settings))
        return engine

    monkeypatch.setattr(change, "exact_engine_for", wrong)
    step = CapturedStep(potential, structure)
    spoil(step)
    step.audit_owed = True
    for _ in range(2):  # no result is given, until one passes
        with pytest.raises(AuditError, match="its forces differ from the exact model's by 1.0e\\+00"):
            step(structure.positions)


def test_without_memory_for_the_exact_model_nothing_is_compared_and_a_warning_says_so(
    make_potential, monkeypatch, caplog
):
    def exhausted(*given, **options):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(findings, "exact_results", exhausted)
    step = audited(make_potential(torch.float32, **SMALL), silicon(1, 1, 1))
    said = "8 atoms in the whole structure: the GPU has too little memory for the exact model"
    assert step.report().not_compared == said
    assert caplog.messages == [f"an audit could not compare {said}"]


@pytest.mark.usefixtures("small_limits")
def test_an_environment_that_is_too_large_is_named(make_potential, monkeypatch):
    monkeypatch.setattr("torchmdx.step.environment.MOST_AROUND", 20)
    report = audited(make_potential(torch.float32, **SMALL), silicon(2, 2, 2)).report()
    assert "is more than the exact model is given (20)" in report.not_compared


@pytest.mark.usefixtures("small_limits")
def test_atoms_are_added_until_there_are_enough(make_potential, monkeypatch):
    """Of a gas, an environment is one molecule."""
    spread = [System.create(WATER.positions + 20 * k, WATER.atomic_numbers) for k in range(20)]
    gas = System.create(torch.cat([w.positions for w in spread]), torch.cat([w.atomic_numbers for w in spread]))
    report = audited(make_potential(torch.float32, **SMALL), gas).report()
    assert "60 atoms of system 0, around" in report.compared
    assert " atoms (" in report.compared
    monkeypatch.setattr(findings, "ENOUGH_AROUND", 4)
    report = audited(make_potential(torch.float32, **SMALL), gas).report()
    assert "around atom " in report.compared


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["host", "device"])
@pytest.mark.parametrize("fault", [name for name in FAULTS if "first" not in name])
def test_a_graph_with_wrong_results_is_refused(make_potential, fault, kind):
    step = CapturedStep(
        make_potential(torch.float32, **SMALL).cuda(), silicon(1, 1, 1), stress=True, energies=True, mode="graph"
    )
    wrong, text = FAULTS[fault]
    change_outputs(step, wrong)
    with pytest.raises(GraphRefused, match=f"the graph was refused: .*{text} from the exact model's by"):
        step.capture(kind)


@pytest.mark.parametrize("name", ["energy", "energies", "forces", "stress"])
def test_a_replay_is_compared_with_launches_by_all_results(make_potential, name, device):
    potential = make_potential(torch.float32, **SMALL).to(device)
    step = CapturedStep(potential, silicon(2, 1, 1), stress=True, energies=True)
    step(step.batch.positions)
    launched = step.buffers.copied_outputs()
    assert step._judge("device", launched) is None
    launched[name] *= 1.01
    assert "from a launch's by" in step._judge("device", launched)


@pytest.mark.gpu
def test_what_a_large_graph_returns_is_audited(trained):
    potential, structure = trained("cuda"), silicon(9, 9, 8)
    step = CapturedStep(potential, structure, stress=True, energies=True, mode="graph")
    step(structure.positions)
    assert step.error < 2e-5
    assert f"of the {structure.num_atoms:,} atoms of system 0" in step.report().compared
    assert structure.num_atoms > drawn.MOST_WHOLE
