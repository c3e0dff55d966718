"""`coulomb_cutoff` through every door: against a potential made with that cutoff, and what is said about it."""

import json
import warnings

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.io import write
from model_kinds import coulomb

from torchmdx import Calculator, CapturedStep, Ensemble, Potential, System, evaluate, load, relax
from torchmdx.commands import cli
from torchmdx.models.coulomb_cutoff import coulomb_cutoff_of, has_coulomb, with_coulomb_cutoff
from torchmdx.structures.units import KJ_PER_MOL

OWN, OTHER = 6.0, 4.5  # Å: of the fixture `charged`, and another
SAID = f"truncates the Coulomb energy of periodic systems at {OTHER:g} Å, with a reaction field"


def energy_with(charged: Potential, cutoff: float, atoms: Atoms) -> float:
    """Of a potential whose prior was made with a cutoff, by the reference in float64."""
    made = charged.with_priors([coulomb(cutoff=cutoff)])
    return float(evaluate(made, System.from_ase(atoms), forces=False).energy)


def assert_other(charged: Potential, atoms: Atoms, energy: float, tolerance: float = 1e-9) -> None:
    assert abs(energy_with(charged, OTHER, atoms) - energy_with(charged, OWN, atoms)) > 1e-3
    assert energy == pytest.approx(energy_with(charged, OTHER, atoms), abs=tolerance)


def test_only_systems_that_it_truncates_change(charged, box):
    other = with_coulomb_cutoff(charged, OTHER)
    assert_other(charged, box, float(evaluate(other, System.from_ase(box)).energy))
    box.pbc, box.cell = False, None
    alone = System.from_ase(box)
    assert float(evaluate(other, alone).energy) == float(evaluate(charged, alone).energy)
    assert [coulomb_cutoff_of(one, periodic=True) for one in (charged, other)] == [OWN, OTHER]
    assert coulomb_cutoff_of(other, periodic=False) is None
    cut = with_coulomb_cutoff(charged.with_priors([coulomb(cut_in_vacuum=True)]), OTHER)
    assert coulomb_cutoff_of(cut, periodic=False) == OTHER
    assert other.card == charged.card
    assert charged.prior_configs[0].cutoff == OWN
    assert with_coulomb_cutoff(charged, None) is charged


def test_a_field_everywhere_truncates_molecules_too(charged, box):
    """Against a potential that was made to truncate in vacuum."""
    made = charged.with_priors([coulomb(cutoff=OTHER, cut_in_vacuum=True)])
    other = with_coulomb_cutoff(charged, OTHER, "reaction_field_everywhere")
    for periodic in (True, False):
        box.pbc = periodic
        system = System.from_ase(box)
        wanted = float(evaluate(made, system).energy)
        assert float(evaluate(other, system).energy) == wanted
        assert float(evaluate(charged, system).energy) != pytest.approx(wanted, abs=1e-4)
    summed = with_coulomb_cutoff(other, None, "ewald")
    assert coulomb_cutoff_of(summed, periodic=False) is None
    assert has_coulomb(Ensemble([charged, charged]))
    assert not has_coulomb(charged.with_priors([]))


@pytest.mark.parametrize("cutoff", [0.0, -1.0, float("inf"), float("nan"), True])
def test_it_must_be_a_length(charged, cutoff):
    with pytest.raises(ValueError, match=rf"cutoff of the prior coulomb must be > 0 Å and finite, got {cutoff}"):
        with_coulomb_cutoff(charged, cutoff)


def test_it_needs_a_coulomb_energy(charged, make_potential):
    plain = make_potential(model="tensornet2")
    for given in (plain, Ensemble([plain, plain])):
        with pytest.raises(ValueError, match=r"coulomb_cutoff needs .* a Coulomb energy, got 8.0 Å for this potential"):
            with_coulomb_cutoff(given, 8.0)
    with pytest.raises(ValueError, match="coulomb_cutoff needs a potential with a Coulomb energy"):
        Calculator(plain, coulomb_cutoff=8.0)
    calibrated = Ensemble([charged, charged], ["a", "b"], (2.0, 3.0))
    both = with_coulomb_cutoff(calibrated, OTHER)
    summed = with_coulomb_cutoff(calibrated, None, "ewald", 1e-6)
    assert both.names == summed.names == ("a", "b")
    assert both.spread_factors == summed.spread_factors == (2.0, 3.0)
    assert coulomb_cutoff_of(both, periodic=True) == OTHER


def test_ewald_sums_over_all_images_and_all_pairs(charged, box):
    summed = with_coulomb_cutoff(charged.with_priors([coulomb(cut_in_vacuum=True)]), None, "ewald")
    (config,) = summed.prior_configs
    assert (config.periodic, config.cut_in_vacuum, config.cutoff) == ("auto", False, 9.0)
    assert_summed(charged, box, float(evaluate(summed, System.from_ase(box)).energy))
    other = with_coulomb_cutoff(charged, 7.0, "ewald")
    assert (other.prior_configs[0].periodic, other.prior_configs[0].cutoff) == ("ewald", 7.0)
    assert_summed(charged, box, float(evaluate(other, System.from_ase(box)).energy))
    assert coulomb_cutoff_of(summed, periodic=True) is None
    assert summed.doubts([1, 6, 8], 0.0, True) == charged.card.doubts([1, 6, 8], 0.0, True)
    (said,) = set(summed.doubts([1, 6, 8], -1.0, True)) - set(charged.card.doubts([1, 6, 8], -1.0, True))
    assert "a total charge of -1 e, which a uniform background neutralizes" in said


def test_a_cutoff_alone_truncates_what_was_summed(charged, box):
    summed = with_coulomb_cutoff(charged, None, "ewald")
    again = with_coulomb_cutoff(summed, OTHER)
    assert_other(charged, box, float(evaluate(again, System.from_ase(box)).energy))
    field = with_coulomb_cutoff(summed, None, "reaction_field").prior_configs[0]
    assert (field.periodic, field.cutoff) == ("reaction_field", 10.0)
    kept = with_coulomb_cutoff(charged, None, "reaction_field").prior_configs[0]
    assert kept == charged.prior_configs[0]


def test_an_unknown_treatment_is_refused(charged, make_potential):
    with pytest.raises(
        ValueError,
        match="coulomb must be one of ewald, pme, reaction_field, reaction_field_everywhere, or None, got 'p3m'",
    ):
        Calculator(charged, coulomb="p3m")
    with pytest.raises(ValueError, match="coulomb needs a potential with a Coulomb energy, got 'ewald' for"):
        Calculator(make_potential(), coulomb="ewald")


def assert_summed(charged: Potential, atoms: Atoms, energy: float, tolerance: float = 1e-5) -> None:
    made = charged.with_priors([coulomb(periodic="ewald", accuracy=1e-11)])
    wanted = float(evaluate(made, System.from_ase(atoms), forces=False).energy)
    assert abs(wanted - energy_with(charged, OWN, atoms)) > 1e-3
    assert energy == pytest.approx(wanted, abs=tolerance)


def test_load_takes_it(charged, checkpoint, box):
    potential = load(checkpoint, coulomb_cutoff=OTHER)
    assert_other(charged, box, float(evaluate(potential, System.from_ase(box)).energy))
    both = load([checkpoint, checkpoint], coulomb_cutoff=OTHER)
    assert [member.prior_configs[0].cutoff for member in both] == [OTHER, OTHER]


def test_the_calculator_takes_it_and_warns_once(charged, box):
    calculator = Calculator(charged, dtype="float64", device="cpu", coulomb_cutoff=OTHER)
    box.calc = calculator
    with pytest.warns(UserWarning, match=f"ionic {SAID}") as said:
        energy = box.get_potential_energy()
    assert len(said) == 1
    assert "can be off by more than half; coulomb='ewald' (--coulomb ewald) sums over" in str(said[0].message)
    box.positions[0] += 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        box.get_forces()
    box.positions[0] -= 0.01
    assert_other(charged, box, energy)
    assert calculator.parameters["coulomb_cutoff"] == OTHER
    with pytest.raises(ValueError, match="coulomb_cutoff can't be changed by set"):
        calculator.set(coulomb_cutoff=7.0)
    assert "coulomb cutoff  4.5" in str(calculator.report())


def test_a_molecule_gives_no_warning(charged):
    calculator = Calculator(charged, dtype="float64", device="cpu")
    atoms = molecule("CH3CH2OH", calculator=calculator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.get_potential_energy()
    assert calculator.report().coulomb_cutoff is None


def test_given_charges_give_no_warning(make_potential):
    given = make_potential(priors=[lambda: coulomb(charges="given", weights=None)])
    assert given.doubts([1, 1], 0.0, True) == []


def test_a_step_reports_it(charged, box):
    step = CapturedStep(with_coulomb_cutoff(charged, OTHER), System.from_ase(box))
    assert step.report().coulomb_cutoff == OTHER


def test_relaxation_takes_it(charged, box):
    with pytest.warns(UserWarning, match=SAID):
        (found,) = relax([box], charged, steps=1, fmax=1e-6, device="cpu", coulomb_cutoff=OTHER)
    assert_other(charged, found.atoms, found.atoms.get_potential_energy())


def test_beads_take_it(charged, box):
    from torchmdx.ipi.beads import BOHR, HARTREE, load_beads

    with pytest.warns(UserWarning, match=SAID):
        beads = load_beads(charged, box, dtype="float64", device="cpu", coulomb_cutoff=OTHER)
    energies, _, _ = beads([box.positions / BOHR], [box.cell.array / BOHR])
    assert_other(charged, box, energies[0] * HARTREE)


def test_torch_sim_takes_it(charged, box):
    torch_sim = pytest.importorskip("torch_sim")
    from torchmdx.torch_sim import TorchmdxModel

    model = TorchmdxModel(charged, precision="float64", device="cpu", coulomb_cutoff=OTHER)
    state = torch_sim.io.atoms_to_state([box], device=torch.device("cpu"), dtype=torch.float64)
    with pytest.warns(UserWarning, match=SAID):
        assert_other(charged, box, float(model(state)["energy"]))


# OpenMM


def _openmm_energy(system, box):
    import openmm
    from openmm import unit

    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(box.positions / 10)
    energy = context.getState(energy=True).getPotentialEnergy()
    return energy.value_in_unit(unit.kilojoule_per_mole) * KJ_PER_MOL


def _openmm_box(box):
    openmm = pytest.importorskip("openmm")
    from openmm import app

    topology, system = app.Topology(), openmm.System()
    residue = topology.addResidue("ETH", topology.addChain())
    for number in box.numbers:
        topology.addAtom("X", app.Element.getByAtomicNumber(int(number)), residue)
        system.addParticle(1.0)
    vectors = [openmm.Vec3(*row) for row in box.cell.array / 10]
    system.setDefaultPeriodicBoxVectors(*vectors)
    topology.setPeriodicBoxVectors(vectors * openmm.unit.nanometer)
    return topology, system


def test_openmm_takes_it_and_a_saved_system_keeps_it(checkpoint, charged, box):
    topology, system = _openmm_box(box)
    from openmm import XmlSerializer

    from torchmdx.openmm import add_potential, load_system

    options = dict(precision="float64", device="cpu", transport="python", periodic=True)
    with pytest.warns(UserWarning, match=SAID):
        add_potential(system, topology, checkpoint, coulomb_cutoff=OTHER, **options)
    assert_other(charged, box, _openmm_energy(system, box))
    text = XmlSerializer.serialize(system)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = load_system(text)
    assert_other(charged, box, _openmm_energy(again, box))


def test_a_region_in_a_periodic_box_is_truncated_too_and_says_so(checkpoint, box):
    topology, system = _openmm_box(box)
    from torchmdx.openmm import add_potential

    options = dict(precision="float64", device="cpu", transport="python", periodic=True)
    with pytest.warns(UserWarning, match=SAID):
        add_potential(system, topology, checkpoint, range(4), coulomb_cutoff=OTHER, **options)


def test_openmmml_takes_it(checkpoint, charged, box):
    pytest.importorskip("openmmml")
    topology, _ = _openmm_box(box)
    from torchmdx.openmm.openmmml import PotentialFactory

    made = PotentialFactory().createImpl("torchmdx", modelPath=checkpoint)
    _, system = _openmm_box(box)
    with pytest.warns(UserWarning, match=SAID):
        made.addForces(
            topology, system, None, 0, coulomb_cutoff=OTHER / 10, precision="double", device="cpu", transport="python"
        )
    assert_other(charged, box, _openmm_energy(system, box))


# commands

SAYS = pytest.mark.filterwarnings("always:.*Coulomb energy:UserWarning")  # which they print


@pytest.fixture
def box_file(box, tmp_path):
    write(tmp_path / "box.extxyz", box)
    return tmp_path / "box.extxyz"


@SAYS
def test_energy_takes_it(charged, checkpoint, box, box_file, capsys):
    words = ["energy", box_file, "--model", checkpoint, "--device", "cpu", "--json", "--coulomb-cutoff", OTHER]
    assert cli.main(list(map(str, words))) == 0
    out, err = capsys.readouterr()
    assert err.count(SAID) == 1
    assert_other(charged, box, json.loads(out)[0]["energy"], 1e-6)


def test_neighbors_take_it(checkpoint, box_file, capsys):
    words = ["neighbors", box_file, "--model", checkpoint, "--device", "cpu", "--coulomb-cutoff", "5.5"]
    assert cli.main(list(map(str, words))) == 0
    assert "within 5.5 Å" in capsys.readouterr().out


@pytest.mark.nightly
@SAYS
@pytest.mark.parametrize("engine", ["openmm", "torchmdx"])
def test_a_run_takes_it_and_its_restart_compares_it(checkpoint, box_file, tmp_path, capsys, engine):
    if engine == "openmm":
        pytest.importorskip("openmm")
    words = [
        *("md", box_file, "-o", tmp_path / "run", "--model", checkpoint, "--engine", engine, "--device", "cpu"),
        *("--precision", "float64", "--save-every", 1, "--log-every", 1, "--seed", 1, "--no-page"),
    ]
    words = list(map(str, words))
    assert cli.main([*words, "--steps", "2", "--coulomb-cutoff", str(OTHER)]) == 0
    assert capsys.readouterr().err.count(SAID) == 1
    assert cli.main([*words, "--steps", "4", "--restart"]) == 2
    assert f"Coulomb cutoff in Å None, was {OTHER}" in capsys.readouterr().err
    assert cli.main([*words, "--steps", "4", "--restart", "--coulomb-cutoff", str(OTHER)]) == 0


@SAYS
def test_evaluation_takes_it(charged, checkpoint, box, tmp_path, capsys):
    from ase.calculators.singlepoint import SinglePointCalculator

    box.calc = SinglePointCalculator(
        box, energy=energy_with(charged, OTHER, box), forces=np.zeros((len(box), 3)), stress=np.zeros(6)
    )
    write(tmp_path / "labelled.extxyz", [box, box])
    words = ["evaluate", tmp_path / "labelled.extxyz", "--model", checkpoint, "--dtype", "float64", "--json"]
    words = [*map(str, words), "--device", "cpu", "--energy-unit", "eV", "--length-unit", "angstrom"]
    assert cli.main([*words, "--coulomb-cutoff", str(OTHER)]) == 0
    out, err = capsys.readouterr()
    assert err.count(SAID) == 1
    (found,) = json.loads(out)["sets"].values()
    assert found["energy_by_size"]["9"]["max"] < 1e-6  # meV/atom
