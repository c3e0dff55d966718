"""`coulomb="ewald"` through every door: against the exact sum of the reference in float64."""

import json
import warnings

import numpy as np
import pytest
import torch
from ase.io import write
from model_kinds import coulomb

from torchmdx import Calculator, Dynamics, Potential, System, evaluate, load, relax, save
from torchmdx.commands import cli
from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.models.coulomb_cutoff import TREATMENTS, with_coulomb_cutoff
from torchmdx.structures.units import KJ_PER_MOL

FIELD = 6.0  # Å, of the fixture `charged`


@pytest.fixture(autouse=True)
def silent():
    """Nothing is truncated, so nothing is said."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*truncates the Coulomb energy")
        yield


def exact(charged: Potential, atoms):
    made = charged.with_priors([coulomb(periodic="ewald", accuracy=1e-11)])
    return evaluate(made, System.from_ase(atoms), stress=True)


def assert_summed(charged, atoms, energy, forces=None, tolerance=1e-5):
    wanted = exact(charged, atoms)
    truncated = evaluate(charged, System.from_ase(atoms), forces=False)
    assert abs(float(wanted.energy[0] - truncated.energy[0])) > 100 * tolerance
    assert energy == pytest.approx(float(wanted.energy[0]), abs=tolerance)
    if forces is not None:
        np.testing.assert_allclose(forces, wanted.forces, rtol=0, atol=tolerance)


def test_load(charged, checkpoint, box):
    found = evaluate(load(checkpoint, coulomb="ewald"), System.from_ase(box))
    assert_summed(charged, box, float(found.energy[0]), found.forces)
    both = load([checkpoint, checkpoint], coulomb="ewald")
    assert [member.prior_configs[0].periodic for member in both] == ["auto", "auto"]
    (config,) = load(checkpoint, coulomb="pme", coulomb_accuracy=1e-7).prior_configs
    assert (config.periodic, config.accuracy) == ("pme", 1e-7)


@pytest.mark.parametrize("options", [{}, dict(coulomb="reaction_field"), dict(coulomb_cutoff=8.0)])
def test_an_accuracy_of_what_is_truncated_is_refused(checkpoint, options):
    with pytest.raises(ValueError, match=r"coulomb_accuracy needs a sum over all images .* got 1e-06 for ionic, whose"):
        load([checkpoint, checkpoint] if options else checkpoint, coulomb_accuracy=1e-6, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_calculator(charged, box, dtype):
    box.calc = Calculator(
        charged.to(torch.float32) if dtype == "float32" else charged,
        dtype=dtype,
        coulomb="ewald",
        coulomb_accuracy=1e-6,
    )
    energy, forces, stress = box.get_potential_energy(), box.get_forces(), box.get_stress(voigt=False)
    tolerance = 1e-5 if dtype == "float64" else 5e-5
    assert_summed(charged.double(), box, energy, forces, tolerance)
    np.testing.assert_allclose(stress, exact(charged, box).stress[0], rtol=0, atol=1e-6)
    assert box.calc.parameters["coulomb"] == "ewald"
    assert box.calc.report().ewald.startswith("accuracy 1e-06")


def test_stress_of_a_calculator_is_the_derivative(charged, box):
    box.calc = Calculator(charged, dtype="float64", device="cpu", coulomb="ewald")
    stress, cell, step = box.get_stress(voigt=False), box.cell.array.copy(), 1e-4
    for i, j in ((0, 0), (1, 2)):
        energies = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[i, j] += sign * step / 2
            strain[j, i] += sign * step / 2
            box.set_cell(cell @ strain, scale_atoms=True)
            energies.append(box.get_potential_energy())
        slope = (energies[0] - energies[1]) / (2 * step)
        assert stress[i, j] * box.get_volume() == pytest.approx(slope, abs=2e-5)


def test_relaxation_of_a_cell(charged, box):
    (found,) = relax([box], charged, steps=3, fmax=1e-6, cell=True, device="cpu", coulomb="pme", coulomb_accuracy=1e-6)
    assert_summed(charged, found.atoms, found.atoms.get_potential_energy(), found.atoms.get_forces(), 2e-5)
    assert not np.allclose(found.atoms.cell.array, box.cell.array)


@pytest.mark.nightly
def test_dynamics_keep_their_energy(charged, box):
    """Vectors that are kept, and pairs that pass the cutoff, do not make it drift."""
    energies = {}
    for name, potential in (
        ("summed", with_coulomb_cutoff(charged, None, "ewald")),
        ("plain", charged.with_priors([])),
    ):
        run = Dynamics(potential, System.from_ase(box), integrator="verlet", timestep=0.25, temperature=200.0)
        found = [run.snapshot(), *(run.run(10) for _ in range(20))]
        energies[name] = [float(each.energy[0] + each.kinetic_energy[0]) for each in found]
    drift = {name: np.ptp(values) for name, values in energies.items()}
    assert drift["summed"] < 3 * drift["plain"] + 1e-6


def test_dynamics_warn_of_what_is_truncated(charged, box):
    system = System.from_ase(box)
    with pytest.warns(UserWarning, match="ionic truncates the Coulomb energy of periodic systems at 6 Å") as said:
        Dynamics(charged, [system, system], timestep=0.25)
    assert len(said) == 1
    assert said[0].filename == __file__


def test_a_barostat_changes_the_cell(charged, box):
    barostat = CellRescaling(pressure=2e4, relaxation=0.005, compressibility=1e-5)
    run = Dynamics(
        with_coulomb_cutoff(charged, None, "ewald"), System.from_ase(box), timestep=0.25, seed=1, barostat=barostat
    )
    state = run.run(60)
    atoms = box.copy()
    atoms.set_cell(state.cell[0])
    atoms.set_positions(state.positions)
    assert np.abs(atoms.cell.array - box.cell.array).max() > 0.05
    assert_summed(charged, atoms, float(state.energy[0]), tolerance=5e-5)


def test_beads(charged, box):
    from torchmdx.ipi.beads import BOHR, HARTREE, load_beads

    beads = load_beads(charged, box, dtype="float64", device="cpu", coulomb="ewald", coulomb_accuracy=1e-6)
    energies, _, virials = beads([box.positions / BOHR], [box.cell.array / BOHR])
    assert_summed(charged, box, energies[0] * HARTREE)
    wanted = -exact(charged, box).stress[0] * box.get_volume()
    np.testing.assert_allclose(np.reshape(virials[0], (3, 3)) * HARTREE, wanted, rtol=0, atol=1e-4)


def test_the_driver_of_ipi(charged, checkpoint, box, tmp_path):
    pytest.importorskip("ipi.pes")
    from torchmdx.ipi.beads import BOHR, HARTREE
    from torchmdx.ipi.driver import TorchmdxDriver

    write(tmp_path / "box.extxyz", box)
    options = dict(dtype="float64", device="cpu", coulomb="ewald", coulomb_accuracy="1e-6")
    driver = TorchmdxDriver(str(tmp_path / "box.extxyz"), str(checkpoint), **options)
    energy = driver(box.cell.array.T / BOHR, box.positions / BOHR)[0]
    assert_summed(charged, box, energy * HARTREE)


def test_lammps(charged, checkpoint, box):
    pytest.importorskip("lammps")
    from torchmdx.lammps.session import LammpsSession
    from torchmdx.lammps.settings import Settings

    options = dict(precision="float64", device="cpu", coulomb="ewald", coulomb_accuracy=1e-6)
    session = LammpsSession(Settings(model=str(checkpoint), **options), 0)
    count, places = len(box), box.positions + 3.0
    inputs = session.assign(places, box.numbers, np.zeros(count, int), count, count, box.cell.array, [True] * 3)
    inputs[:] = places
    found = session.step(cell=box.cell.array)
    assert_summed(charged, box, found.energy, found.forces)


def test_torch_sim(charged, box):
    torch_sim = pytest.importorskip("torch_sim")
    from torchmdx.torch_sim import TorchmdxModel

    model = TorchmdxModel(charged, precision="float64", device="cpu", coulomb="pme", coulomb_accuracy=1e-6)
    state = torch_sim.io.atoms_to_state([box], device=torch.device("cpu"), dtype=torch.float64)
    found = model(state)
    assert_summed(charged, box, float(found["energy"]), found["forces"].numpy())


@pytest.mark.nightly_for("True-python")
@pytest.mark.parametrize(("barostat", "transport"), [(False, "python"), (True, "python"), (True, "native")])
def test_openmm(checkpoint, charged, box, barostat, transport):
    openmm = pytest.importorskip("openmm")
    from openmm import app

    from torchmdx.openmm import add_potential, load_system
    from torchmdx.openmm.native import native

    if transport == "native" and (reason := native.unavailable(cuda=False)):
        pytest.skip(f"no plugin: {reason}")
    topology, system = app.Topology(), openmm.System()
    residue = topology.addResidue("ETH", topology.addChain())
    for number, mass in zip(box.numbers, box.get_masses(), strict=True):
        topology.addAtom("X", app.Element.getByAtomicNumber(int(number)), residue)
        system.addParticle(mass)
    vectors = [openmm.Vec3(*row) for row in box.cell.array / 10]
    system.setDefaultPeriodicBoxVectors(*vectors)
    topology.setPeriodicBoxVectors(vectors * openmm.unit.nanometer)
    options = dict(precision="float64", device="cpu", transport=transport, periodic=True)
    options |= dict(coulomb="pme" if barostat else "ewald", coulomb_accuracy=1e-6)
    force = add_potential(system, topology, checkpoint, **options)
    assert force.evaluator.settings.coulomb_accuracy == 1e-6
    if barostat:
        system.addForce(openmm.MonteCarloBarostat(1.0, 300.0, 5))
    else:
        system = load_system(openmm.XmlSerializer.serialize(system))
    platform = openmm.Platform.getPlatformByName("Reference")
    integrator = openmm.LangevinMiddleIntegrator(300, 10, 0.00025)
    integrator.setRandomNumberSeed(1)
    context = openmm.Context(system, integrator, platform)
    context.setPositions(box.positions / 10)
    integrator.step(40 if barostat else 2)
    state = context.getState(energy=True, positions=True, forces=True)
    atoms = box.copy()
    atoms.set_cell(state.getPeriodicBoxVectors(asNumpy=True)._value * 10)
    atoms.set_positions(state.getPositions(asNumpy=True)._value * 10)
    energy = state.getPotentialEnergy()._value * KJ_PER_MOL
    forces = state.getForces(asNumpy=True)._value * KJ_PER_MOL / 10
    assert_summed(charged, atoms, energy, forces, 2e-5)
    assert np.allclose(atoms.cell.array, box.cell.array) != barostat


@pytest.mark.parametrize("command", ["energy", "convert"])
def test_commands(charged, checkpoint, box, tmp_path, capsys, command):
    write(tmp_path / "box.extxyz", box)
    model, summed = checkpoint, ["--coulomb", "ewald", "--coulomb-accuracy", "1e-6"]
    if command == "convert":
        model = tmp_path / "summed.safetensors"
        assert cli.main(["convert", str(checkpoint), str(model), *summed]) == 0
        said = capsys.readouterr().out
        assert "Coulomb energy: ewald, from --coulomb" in said
        assert "accuracy of the Coulomb energy: 1e-06, from --coulomb-accuracy" in said
    words = ["energy", tmp_path / "box.extxyz", "--model", model, "--device", "cpu", "--json", "--dtype", "float64"]
    words += summed if command == "energy" else []
    assert cli.main(list(map(str, words))) == 0
    assert_summed(charged, box, json.loads(capsys.readouterr().out)[0]["energy"])


def test_commands_truncate_the_energy_of_molecules_too(charged, checkpoint, box, tmp_path, capsys):
    """The choices are those of `load`."""
    box.pbc = False
    write(tmp_path / "cluster.extxyz", box)
    found = {}
    for chosen in TREATMENTS:
        words = ["energy", tmp_path / "cluster.extxyz", "--model", checkpoint, "--device", "cpu", "--json"]
        assert cli.main([*map(str, words), "--dtype", "float64", "--coulomb", chosen]) == 0
        found[chosen] = json.loads(capsys.readouterr().out)[0]["energy"]
        exact = evaluate(with_coulomb_cutoff(charged, None, chosen), System.from_ase(box), forces=False).energy
        assert found[chosen] == pytest.approx(float(exact), rel=1e-9)
    assert abs(found["reaction_field_everywhere"] - found["reaction_field"]) > 1e-6


def test_info_says_how_periodic_systems_are_treated(charged, checkpoint, tmp_path, capsys):
    save(with_coulomb_cutoff(charged, None, "ewald"), tmp_path / "summed.safetensors")
    for file, said in (
        (checkpoint, f"truncated at {FIELD:g} Å, with a reaction field"),
        (tmp_path / "summed.safetensors", "summed over all images, with a relative error of forces of 1e-05"),
    ):
        assert cli.main(["info", str(file)]) == 0
        assert f"Coulomb energy of periodic systems: {said}" in capsys.readouterr().out


@pytest.mark.nightly_for("openmm")
@pytest.mark.parametrize("engine", ["openmm", "torchmdx"])
def test_md_and_its_restart(checkpoint, box, tmp_path, capsys, engine):
    if engine == "openmm":
        pytest.importorskip("openmm")
    write(tmp_path / "box.extxyz", box)
    words = [
        *("md", tmp_path / "box.extxyz", "-o", tmp_path / "run", "--model", checkpoint, "--engine", engine),
        *("--device", "cpu", "--save-every", 1, "--log-every", 1, "--seed", 1, "--no-page"),
    ]
    words = list(map(str, words))
    summed = ["--coulomb", "ewald", "--coulomb-accuracy", "1e-6"]
    assert cli.main([*words, "--steps", "2", *summed]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cli.main([*words, "--steps", "4", "--restart"]) == 2
    said = capsys.readouterr().err
    assert "Coulomb energy None, was ewald" in said
    assert "Coulomb accuracy None, was 1e-06" in said
    assert cli.main([*words, "--steps", "4", "--restart", *summed]) == 0
