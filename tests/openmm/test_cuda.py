"""OpenMM's CUDA platform with all three transports: `pytest -m gpu`."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from ase import Atoms  # noqa: E402
from boxes import assert_same, box_of, context_of, empty_system, expected, found, topology_of  # noqa: E402
from mixed_systems import mix  # noqa: E402
from mm_systems import SOLUTE, mm_system, water_box  # noqa: E402
from openmm import app, unit  # noqa: E402
from transports import require_on_gpu  # noqa: E402

from torchmdx import Ensemble, save  # noqa: E402
from torchmdx.openmm import add_potential  # noqa: E402
from torchmdx.structures.units import NANOMETER  # noqa: E402

pytestmark = pytest.mark.gpu
TRANSPORTS = ("native", "python", "torch")
TOLERANCE = 2e-5  # OpenMM's positions are float32 in single precision, ours in the network


@pytest.fixture(autouse=True)
def transports_there(request):
    require_on_gpu(request)


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=16, num_layers=2, cutoff=4.0)


def water(num_side: int = 4) -> Atoms:
    """Molecules on a grid, turned at random, in a periodic cube."""
    rng = np.random.default_rng(3)
    shape = np.array([[0.0, 0, 0], [0.9572, 0, 0], [-0.24, 0.9266, 0]])
    grid = np.stack(np.meshgrid(*[np.arange(num_side)] * 3, indexing="ij"), -1).reshape(-1, 3) * 3.1
    turns = np.linalg.qr(rng.normal(size=(len(grid), 3, 3)))[0]
    positions = (grid[:, None] + np.einsum("nij,kj->nki", turns, shape)).reshape(-1, 3)
    return Atoms("OHH" * len(grid), positions, cell=np.eye(3) * 3.1 * num_side, pbc=True)


def system_of(potential, structure, **options):
    system = empty_system(structure)
    force = add_potential(system, topology_of(structure), potential, **{"device": "cuda", **options})
    return system, force


def positions_in(context) -> np.ndarray:
    return context.getState(positions=True).getPositions(asNumpy=True)._value * NANOMETER


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("precision", ["mixed", "single", "double"])
@pytest.mark.parametrize("name", ["ethanol", "water"])
def test_energies_and_forces_are_those_of_the_calculator(potential, ethanol, transport, precision, name):
    atoms = ethanol if name == "ethanol" else water()
    system, force = system_of(potential, atoms, transport=transport)
    assert force.transport == transport
    context = context_of(system, atoms, "CUDA", Precision=precision)
    for _ in range(4):  # launched, captured, replayed
        assert_same(found(context), expected(potential, atoms), TOLERANCE)


def test_auto_is_native_and_openmm_shares_the_context(potential, ethanol):
    from torchmdx.openmm.native.one_context import contexts_handed_out

    system, force = system_of(potential, ethanol)
    assert (force.transport, force.why) == ("native", "the fastest, and it works here")
    before = contexts_handed_out()
    context = context_of(system, ethanol, "CUDA")
    found(context)
    assert contexts_handed_out()[0] == before[0] + 1
    del context
    assert contexts_handed_out()[1] == before[1] + 1
    assert torch.ones(3, device="cuda").sum().item() == 3  # torch still works in it


@pytest.mark.parametrize("transport", TRANSPORTS[:2])  # openmm-torch gives wrapped positions, and is refused
def test_a_subset_of_a_periodic_system_without_images_of_its_own(potential, transport):
    """OpenMM moves molecules into the box; a potential without images must see them whole all the same."""
    atoms = water(3)  # 81 atoms: not a multiple of what OpenMM pads its buffers to
    atoms.positions += [1.4, -0.7, 30.0]
    system, chosen = empty_system(atoms), [30, 31, 32, 6, 7, 8]
    nonbonded = openmm.NonbondedForce()
    nonbonded.setNonbondedMethod(openmm.NonbondedForce.CutoffPeriodic)
    nonbonded.setCutoffDistance(0.5)
    bonds = openmm.HarmonicBondForce()
    for i in range(0, len(atoms), 3):
        for _ in range(3):
            nonbonded.addParticle(0.0, 0.3, 0.0)
        bonds.addBond(i, i + 1, 0.09572, 1000.0)
        bonds.addBond(i, i + 2, 0.09572, 1000.0)
    bonds.setForceGroup(4)
    system.addForce(nonbonded)
    system.addForce(bonds)
    topology = topology_of(atoms)
    add_potential(
        system, topology, potential, chosen, periodic=False, force_group=7, transport=transport, device="cuda"
    )
    context = context_of(system, atoms, "CUDA")
    context.setVelocitiesToTemperature(600, 1)
    context.getIntegrator().step(600)
    # Positions that are set undo what OpenMM has moved.
    for moved in (positions_in(context), atoms.positions + np.array([0.3, 40.0, -20.0])):
        atoms.positions = moved
        context.setPositions(moved / NANOMETER)
        part = atoms[chosen]
        part.pbc = False
        energy, forces = found(context, groups={7})
        assert_same((energy, forces[chosen]), expected(potential, part), 1e-4)
        assert not np.delete(forces, chosen, axis=0).any()
        context.getIntegrator().step(300)
        atoms.positions = positions_in(context)
        part = atoms[chosen]
        part.pbc = False
        assert_same((found(context, groups={7})[0], forces * 0), (expected(potential, part)[0], forces * 0), 1e-4)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_after_reordering_and_a_changed_box(potential, transport):
    atoms = water()
    system, _ = system_of(potential, atoms, transport=transport)
    context = context_of(system, atoms, "CUDA")
    context.setVelocitiesToTemperature(300, 1)
    context.getIntegrator().step(600)  # OpenMM reorders atoms every few hundred steps
    atoms.positions = positions_in(context)
    assert_same(found(context), expected(potential, atoms), TOLERANCE)
    atoms.set_cell(atoms.cell.array * 1.05, scale_atoms=True)
    context.setPeriodicBoxVectors(*box_of(atoms))
    context.setPositions(atoms.positions / NANOMETER)
    assert_same(found(context), expected(potential, atoms), TOLERANCE)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_scale_and_energy_alone(potential, transport):
    atoms = water()
    system, _ = system_of(potential, atoms, transport=transport, scale_parameter="s", force_group=2)
    context = context_of(system, atoms, "CUDA")
    energy, forces = expected(potential, atoms)
    for scale in (1.0, 0.3):
        context.setParameter("s", scale)
        assert_same(found(context), (scale * energy, scale * forces), TOLERANCE)
        alone = context.getState(energy=True).getPotentialEnergy()._value
        assert abs(alone - found(context)[0] / 0.0103642696) < 1e-4 * abs(alone)
    assert found(context, groups={0})[0] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_contexts_in_turns(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport)
    moved = ethanol.copy()
    moved.rattle(0.05, seed=4)
    one, two = context_of(system, ethanol, "CUDA"), context_of(system, moved, "CUDA")
    for _ in range(4):
        assert_same(found(one), expected(potential, ethanol), TOLERANCE)
        assert_same(found(two), expected(potential, moved), TOLERANCE)
    del one
    assert_same(found(two), expected(potential, moved), TOLERANCE)
    del two, system
    assert torch.ones(3, device="cuda").sum().item() == 3


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_overflowing_list_is_mended_before_forces_are_used(potential, transport):
    positions = np.array([[i, j, k] for i in range(4) for j in range(4) for k in range(4)], dtype=float)
    loose, dense = Atoms("H64", positions * 3.9), Atoms("H64", positions * 1.1)
    system, force = system_of(potential, loose, transport=transport)
    context = context_of(system, loose, "CUDA")
    for _ in range(4):
        found(context)
    context.setPositions(dense.positions / NANOMETER)
    assert_same(found(context), expected(potential, dense), TOLERANCE)
    assert force.num_recoveries >= 1
    context.setPositions(loose.positions / NANOMETER)
    assert_same(found(context), expected(potential, loose), TOLERANCE)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nan_is_named_and_the_context_stays_usable(potential, ethanol, transport):
    system, _ = system_of(potential, ethanol, transport=transport)
    context = context_of(system, ethanol, "CUDA")
    for _ in range(4):
        found(context)
    positions = ethanol.positions / NANOMETER
    positions[4, 1] = np.nan
    context.setPositions(positions)
    with pytest.raises(openmm.OpenMMException, match=r"atom(s)? 4"):
        context.getState(energy=True, forces=True)
    context.setPositions(ethanol.positions / NANOMETER)
    assert_same(found(context), expected(potential, ethanol), TOLERANCE)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_barostats_move_the_box_and_the_energy_follows(potential, transport):
    atoms = water()
    system, _ = system_of(potential, atoms, transport=transport)
    system.addForce(openmm.MonteCarloBarostat(3000.0, 300.0, 2))
    context = context_of(system, atoms, "CUDA")
    context.setVelocitiesToTemperature(300, 1)
    context.getIntegrator().step(200)
    cell = np.array(context.getState().getPeriodicBoxVectors(asNumpy=True)._value) * NANOMETER
    assert np.abs(cell - atoms.cell.array).max() > 1e-3
    atoms.set_cell(cell)
    atoms.positions = positions_in(context)
    assert_same(found(context), expected(potential, atoms), TOLERANCE)


@pytest.mark.parametrize("transport", TRANSPORTS[:2])
def test_energy_is_conserved_in_a_box_of_water(potential, transport):
    atoms = water()
    potential.scale.mul_(0.01)  # of random weights: forces that 0.5 fs can follow
    system, _ = system_of(potential, atoms, transport=transport)
    context = context_of(system, atoms, "CUDA")
    openmm.LocalEnergyMinimizer.minimize(context, 1.0, 100)
    context.setVelocitiesToTemperature(100, 1)

    def total():
        state = context.getState(energy=True)
        return (state.getPotentialEnergy() + state.getKineticEnergy())._value

    context.getIntegrator().step(2000)
    totals = []
    for _ in range(40):  # 20 ps of 0.5 fs in all
        totals.append(total())
        context.getIntegrator().step(1000)
    drift = np.polyfit(np.arange(40) * 0.5, np.array(totals) / len(atoms), 1)[0]  # kJ/mol/atom/ps
    assert abs(drift) < 1e-4


@pytest.mark.parametrize("transport", ["native", "python"])
def test_xml_of_a_system_with_a_checkpoint(potential, ethanol, tmp_path, transport):
    path = tmp_path / "model.safetensors"
    save(potential, path)
    system, _ = system_of(path, ethanol, transport=transport)
    for again in (openmm.XmlSerializer.clone(system), copy.deepcopy(system)):
        assert_same(found(context_of(again, ethanol, "CUDA")), expected(potential, ethanol), TOLERANCE)


def test_no_graph_survives_a_failed_recovery(make_potential, tmp_path):
    """The list grows, graphs are recorded again, and only then the members are found to disagree."""
    positions = np.array([[i, j, k] for i in range(4) for j in range(4) for k in range(4)], dtype=float)
    loose, dense = Atoms("H64", positions * 4.5), Atoms("H64", positions * 1.1)
    members = [make_potential(num_channels=16, num_layers=1, cutoff=4.0, seed=seed) for seed in (0, 1)]
    ensemble = Ensemble(members)
    limits = dict(max_force_spread=1e-3, spread_file=str(tmp_path / "uncertain.xyz"))
    system, force = system_of(ensemble, loose, transport="native", **limits)
    context = context_of(system, loose, "CUDA")
    wanted = found(context)
    for _ in range(3):
        context.setPositions(dense.positions / NANOMETER)
        with pytest.raises(openmm.OpenMMException, match="the force spread of the ensemble must be at most 0.001 eV/Å"):
            found(context)
        context.setPositions(loose.positions / NANOMETER)
        assert_same(found(context), wanted, TOLERANCE)
    assert force.num_recoveries >= 1


def test_audits_run_beside_a_native_run(potential, monkeypatch):
    from torchmdx.openmm import native_audit
    from torchmdx.step.audit import Verdict

    seen, judged = [], native_audit.judge

    def judge(*given):
        verdict = judged(*given)
        seen.append(verdict.reason)
        return verdict

    monkeypatch.setattr(native_audit, "judge", judge)
    atoms = water(3)
    system, _ = system_of(potential, atoms, transport="native", audit_every=50)
    context = context_of(system, atoms, "CUDA")
    context.setVelocitiesToTemperature(300, 1)
    context.getIntegrator().step(1000)
    del context  # waits for the last
    assert len(seen) >= 19
    assert set(seen) == {None}

    monkeypatch.setattr(native_audit, "judge", lambda *given: Verdict(1.0, "its forces are wrong"))
    context = context_of(system, atoms, "CUDA")
    with pytest.raises(openmm.OpenMMException, match=r"^the audit of evaluation 50, at step \d+: its forces are wrong"):
        context.getIntegrator().step(1000)
    assert 48 <= context.getStepCount() <= 101  # at the latest where the next audit is due
    assert np.isfinite(found(context)[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_forces_are_those_without_a_stream_for_pme(potential, transport):
    """PME adds to the same buffer of forces on a stream of its own."""
    topology, positions = water_box()
    mm = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75 * unit.nanometer)
    options = dict(transport=transport, device="cuda", precision="float32")
    forces = {}
    for disabled in ("false", "true"):
        mixed = mix(mm, topology, list(SOLUTE), potential, **options)
        platform = openmm.Platform.getPlatformByName("CUDA")
        context = openmm.Context(mixed, openmm.VerletIntegrator(0.0005), platform, {"DisablePmeStream": disabled})
        context.setPositions(positions)
        found = [context.getState(forces=True).getForces(asNumpy=True)._value for _ in range(300)]
        forces[disabled] = np.array(found)
        del context
    wanted = np.median(forces["true"], axis=0)
    size = np.abs(wanted[list(SOLUTE)]).max()
    for found in forces.values():
        assert np.abs(found - wanted).max() < 1e-4 * size


OWN = """
import sys; sys.path[:0] = ["tests", "tests/openmm"]
import torch, openmm
from ase.build import molecule
from boxes import context_of, empty_system, found, topology_of
from torchmdx import Potential, TensorNetConfig
from torchmdx.openmm import add_potential
atoms = molecule("CH3CH2OH"); system = empty_system(atoms)
force = add_potential(system, topology_of(atoms), Potential(TensorNetConfig(num_channels=16)), device="cuda")
print(force.transport, "|", force.why)
print(found(context_of(system, atoms, "CUDA"))[0])
"""


def test_one_context_can_be_turned_off(tmp_path):
    import os

    environment = {**os.environ, "TORCHMDX_OWN_CONTEXT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OWN], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("python | $TORCHMDX_OWN_CONTEXT is set")
    assert "costs about 0.3 ms per step" in done.stderr
