"""DividedStep: several devices give the results of the whole structure, while atoms move, cells change, calls fail."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import molecule
from ase.md.verlet import VelocityVerlet

from torchmdx import (
    Calculator,
    CapturedStep,
    DividedStep,
    Potential,
    System,
    TensorNet2Config,
    TensorNetConfig,
    evaluate,
)
from torchmdx.lammps.example import water
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.step import division
from torchmdx.step.domain_step import DomainStep
from torchmdx.step.results import NonFiniteError

EXACT = 2e-13


def potential(dtype=torch.float64, priors=(), seed=0, **settings) -> Potential:
    torch.manual_seed(seed)
    made = Potential(
        TensorNetConfig(**{**dict(num_channels=16, num_radial=8, num_layers=1, cutoff=3.0), **settings}), priors
    )
    made = made.to(dtype)
    made.shift.fill_(3.0)
    made.reference_energies[:9] = torch.linspace(-20, 5, 9)
    return made


def triclinic(pbc=True) -> Atoms:
    atoms = water(64)
    atoms.set_cell(atoms.cell.array @ np.array([[1, 0, 0], [0.3, 1, 0], [0.1, 0.2, 1]]), scale_atoms=True)
    atoms.pbc = pbc
    return atoms


def divided(model, atoms: Atoms, parts: int = 4, **options) -> DividedStep:
    options = {**dict(stress=True, energies=True, devices=["cpu"] * parts), **options}
    return DividedStep(model, System.from_ase(atoms), **options)


def require_equal(result, model, atoms: Atoms, bound: float = EXACT) -> None:
    """bound: relative to the largest entry, for energies in units of eV per atom."""
    periodic = bool(atoms.pbc.all())
    exact = evaluate(model, System.from_ase(atoms), stress=periodic)
    pairs = [(result.energies, exact.energies), (result.forces, exact.forces)]
    if periodic:
        pairs.append((result.stress, exact.stress))
    assert abs(result.energy[0] - float(exact.energy)) < bound * max(len(atoms), abs(float(exact.energy)))
    for found, wanted in pairs:
        assert np.abs(found - wanted.numpy()).max() <= bound * np.abs(wanted.numpy()).max()


@pytest.mark.nightly_for("grid3", "pbc2")
@pytest.mark.parametrize("pbc", [True, False, (True, False, True), (False, True, True), (False, False, True)])
@pytest.mark.parametrize("grid", [None, (2, 1, 1), (1, 3, 1), (1, 2, 2), (4, 1, 1)])
def test_domains_add_up(pbc, grid):
    """Also where copies of atoms, of several periods, outnumber the atoms."""
    atoms, model = triclinic(pbc), potential(num_layers=2)
    atoms.positions += np.random.default_rng(1).integers(-1, 2, (len(atoms), 3)) @ (
        atoms.cell.array * atoms.pbc[:, None]
    )
    step = divided(model, atoms, grid=grid)
    assert grid is None or step.grid == grid
    require_equal(step(atoms.positions, atoms.cell.array), model, atoms)


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 2)])
def test_boxes_smaller_than_the_cutoff(grid):
    atoms, model = triclinic(), potential(cutoff=5.0)
    atoms.set_cell(atoms.cell.array * 0.3, scale_atoms=True)
    atoms = atoms[np.linspace(0, len(atoms) - 1, 9).astype(int)]
    require_equal(divided(model, atoms, grid=grid)(atoms.positions), model, atoms)


def test_right_angles_and_priors():
    atoms, model = water(216), potential(priors=[ZBLConfig()])
    step = divided(model, atoms, 2, grid=(1, 1, 2))
    require_equal(step(atoms.positions), model, atoms)
    report = step.report()
    assert sum(report.owned) == len(atoms)
    assert all(0 < ghosts < len(atoms) for ghosts in report.ghosts)
    assert report.devices == ("cpu", "cpu")
    assert "steps" in str(report)


def test_domains_without_atoms():
    atoms, model = molecule("H2O"), potential()
    step = divided(model, atoms, 4, grid=(4, 1, 1))
    require_equal(step(atoms.positions), model, atoms)
    assert 0 in step.report().owned
    far = Atoms("OHOH", [[0, 0, 0], [1, 0, 0], [500, 0, 0], [501, 0, 0]])
    require_equal(divided(model, far, 2, grid=(2, 1, 1))(far.positions), model, far)


def test_small_structures_use_fewer_devices():
    atoms, model = molecule("CH3CH2OH"), potential()
    step = divided(model, atoms)
    assert step.grid == (1, 1, 1)
    require_equal(step(atoms.positions), model, atoms)


@pytest.mark.nightly
def test_atoms_change_hands():
    """Atoms drift through the box; shares are kept while they have moved by less than half of the skin."""
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, 3, grid=(3, 1, 1), skin=1.0)
    rng = np.random.default_rng(2)
    drift = rng.normal(0, 0.05, (len(atoms), 3))
    for number in range(60):
        atoms.positions += drift + rng.normal(0, 0.01, drift.shape)
        result = step(atoms.positions)
        if number % 6 == 0:
            require_equal(result, model, atoms)
    assert 3 < step.num_assignments < 40


def test_changing_cells():
    """As a barostat changes them, for a while with the same shares."""
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, 2, grid=(1, 2, 1))
    rng = np.random.default_rng(3)
    start, box = atoms.positions.copy(), atoms.cell.array.copy()
    for size, kept in ((0.002, True), (0.01, True), (-0.01, True), (-0.3, False), (0.0, True)):
        deform = np.eye(3) * (1 + size) + rng.normal(0, abs(size) / 2, (3, 3))
        atoms.set_cell(box @ deform)
        atoms.positions = start @ deform + rng.normal(0, 0.02, start.shape)
        before = step.num_assignments
        require_equal(step(atoms.positions, atoms.cell.array), model, atoms)
        assert step.num_assignments == before + (not kept)
    require_equal(step(atoms.positions), model, atoms)  # with the last cell


@pytest.mark.nightly
def test_energy_is_conserved(monkeypatch):
    """Also while atoms change hands, in ASE."""
    monkeypatch.setattr(division, "WORTH_DIVIDING", 1.0)
    atoms = water(125)
    atoms.calc = Calculator(potential(seed=5), dtype="float64", devices=["cpu", "cpu"])
    thermal = np.sqrt(atoms.get_masses() * units.kB * 2000)[:, None]
    atoms.set_momenta(thermal * np.random.default_rng(4).normal(size=(len(atoms), 3)))
    run = VelocityVerlet(atoms, 0.5 * units.fs)
    energies = []
    for _ in range(20):
        run.run(10)
        energies.append(atoms.get_total_energy())
    assert np.ptp(energies) < 2e-3
    assert atoms.calc.report().grid != (1, 1, 1)
    assert atoms.calc.report().assignments > 2


def test_float32_is_close():
    atoms, model = water(216), potential(torch.float32)
    exact = evaluate(copy.deepcopy(model).double(), System.from_ase(atoms)).forces.numpy()
    found = divided(model, atoms, 2, grid=(1, 1, 2))(atoms.positions).forces
    assert np.linalg.norm(found - exact) < 3e-6 * np.linalg.norm(exact)


def test_results_repeat_and_are_the_callers_own():
    atoms = triclinic()
    step = divided(potential(torch.float32), atoms, grid=(2, 2, 1))
    first = step(atoms.positions)
    kept = copy.deepcopy(first)
    step(atoms.positions + 0.05)
    again = step(atoms.positions)
    for name in ("energy", "energies", "forces", "stress"):
        np.testing.assert_array_equal(getattr(first, name), getattr(kept, name))
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    plain = divided(potential(torch.float32), atoms, stress=False, energies=False)(atoms.positions)
    assert plain.stress is None
    assert plain.energies is None


@pytest.mark.parametrize("name", ["assign", "on_device"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_after_an_interruption_results_are_right(name, error, monkeypatch):
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, grid=(3, 1, 1))
    original, calls = getattr(DomainStep, name), []

    def interrupted(self, *given, **options):
        calls.append(self)
        if len(calls) == 2:
            raise error
        return original(self, *given, **options)

    for place in (atoms.positions + 1.0, atoms.positions - 1.0):
        calls.clear()
        monkeypatch.setattr(DomainStep, name, interrupted)
        with pytest.raises(error):
            step(place)
        monkeypatch.setattr(DomainStep, name, original)
        require_equal(step(atoms.positions), model, atoms)


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 1, 1)])
def test_a_bad_call_changes_nothing(grid):
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, grid=grid)
    wrong = atoms.positions.copy()
    wrong[5, 1] = np.inf
    with pytest.raises(NonFiniteError, match="positions of 1 atoms are not finite, the first is atom 5"):
        step(wrong)
    with pytest.raises(ValueError, match=r"positions must have shape \[192, 3\], got \[191, 3\]"):
        step(atoms.positions[:-1])
    with pytest.raises(ValueError, match="lattice vector"):
        step(atoms.positions, np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"cell must have shape"):
        step(atoms.positions, np.eye(2))
    require_equal(step(atoms.positions), model, atoms)
    for first, second in ((3, 190), (100, 7)):
        wrong = atoms.positions.copy()
        wrong[first] = wrong[second] + 5e-5
        pair = " and ".join(map(str, sorted((first, second))))
        with pytest.raises(ValueError, match=f"atoms must not coincide, got atoms {pair} at the same position"):
            step(wrong)
    require_equal(step(atoms.positions), model, atoms)


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 1, 1)])
def test_a_refused_call_keeps_the_cell(grid):
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, grid=grid)
    other, wrong = atoms.cell.array * 1.1, atoms.positions.copy()
    wrong[5, 1] = np.nan
    for refused, error in ((atoms.positions[:5], ValueError), ("here", TypeError), (wrong, NonFiniteError)):
        with pytest.raises(error, match="positions"):
            step(refused, other)
        np.testing.assert_array_equal(step.batch.cell[0].numpy(), atoms.cell.array)
        require_equal(step(atoms.positions), model, atoms)


def test_assign_takes_structures_of_any_size():
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, grid=(2, 1, 1))
    for other in (triclinic((True, False, True)), molecule("CH3CH2OH"), atoms):
        step.assign(System.from_ase(other))
        require_equal(step(other.positions), model, other)
    with pytest.raises(ValueError, match="only one structure can be divided, got a batch of 2"):
        step.assign([System.from_ase(atoms)] * 2)
    require_equal(step(atoms.positions), model, atoms)


@pytest.mark.nightly_for("grid0")
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 1, 1)])
def test_copies(used, how, grid):
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, grid=grid)
    if used:
        atoms.set_cell(atoms.cell.array * 1.01, scale_atoms=True)
        step(atoms.positions, atoms.cell.array)
    other = how(step)
    require_equal(other(atoms.positions), model, atoms)
    assert other.grid == step.grid
    assert other.num_evaluations == 1
    require_equal(step(atoms.positions), model, atoms)


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 1, 1)])
def test_threads_take_turns(grid):
    atoms, model = triclinic(), potential()
    step = divided(model, atoms, grid=grid)
    moved = atoms.copy()
    moved.positions += 0.3
    moved.rattle(0.05, seed=1)
    found = {}

    def work(name, structure):
        for _ in range(5):
            found[name] = step(structure.positions)

    threads = [threading.Thread(target=work, args=item) for item in (("first", atoms), ("second", moved))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    require_equal(found["first"], model, atoms)
    require_equal(found["second"], model, moved)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": []}, r"devices must be a list of one or more devices, got \[\]"),
        ({"devices": "cpu"}, "devices must be a list of one or more devices, got 'cpu'"),
        ({"devices": ["cpu", "tpu"]}, "device must be cpu or cuda, got 'tpu'"),
        ({"grid": (3, 2, 1)}, r"grid must be three numbers >= 1 with a product <= 4, got \(3, 2, 1\)"),
        ({"skin": 0.0}, "skin must be > 0 Å, got 0.0"),
        ({"audit_every": -1}, "audit_every must be >= 0 evaluations, got -1"),
        ({"precision": "float32"}, "precision 'float32' needs a potential in torch.float32, got torch.float64"),
        ({"mode": "fast"}, "mode must be one of auto, graph, eager, got 'fast'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        divided(potential(), triclinic(), **options)


def test_what_can_not_be_divided_is_named():
    refused = [
        (
            Potential(TensorNet2Config(num_channels=16, num_radial=8, num_layers=1)),
            "TensorNet2 conserves the charges",
        ),
        (
            potential(priors=[CoulombConfig(cutoff=6.0, charges="given")]),
            "the prior coulomb may depend on atoms at any",
        ),
        (Ensemble([potential(), potential(seed=1)]), "an ensemble can't be divided among devices.*of its 2 members"),
    ]
    for model, message in refused:
        with pytest.raises(ValueError, match=message):
            divided(model, triclinic())
        with pytest.raises(ValueError, match=message):
            Calculator(model, devices=["cpu", "cpu"])


@pytest.mark.parametrize("charges", ["predicted", "given"])
def test_one_device_serves_a_potential_that_depends_on_all_atoms(charges):
    torch.manual_seed(0)
    settings: dict = dict(num_channels=8, num_radial=4, num_layers=1, cutoff=3.0)
    config = TensorNetConfig(**settings) if charges == "given" else TensorNet2Config(**settings, num_charges=2)
    model = Potential(config, [CoulombConfig(periodic="ewald", cutoff=6.0, charges=charges)]).double()
    atoms = water(8)
    atoms.set_initial_charges(np.where(atoms.numbers == 8, -0.8, 0.4))
    step = DividedStep(model, System.from_ase(atoms), devices=["cpu"], stress=True)
    wanted = CapturedStep(model, System.from_ase(atoms), stress=True)
    for seed in range(2):
        atoms.rattle(0.6 * seed, seed=seed)
        found, exact = step(atoms.positions), wanted(atoms.positions)
        np.testing.assert_allclose(found.energy, exact.energy, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.forces, exact.forces, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.stress, exact.stress, rtol=0, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("second", ["cuda:0", pytest.param("cuda:1", marks=pytest.mark.two_gpus)])
@pytest.mark.parametrize("pbc", [True, (True, False, True)])
def test_several_domains_on_gpus(pbc, second):
    """Two domains of one GPU or of two work at the same time, in threads; graphs survive the change of shares."""
    atoms = water(729)
    atoms.pbc = pbc
    model = potential(torch.float32, num_channels=64, num_radial=16).cuda()
    whole = CapturedStep(model, System.from_ase(atoms), stress=True)
    # "auto" would keep the graphs only if they are measured to be faster, which other work on the GPU can prevent.
    step = divided(model, atoms, devices=["cuda:0", second], grid=(1, 1, 2), mode="graph")
    rng = np.random.default_rng(0)
    drift = rng.normal(0, 0.1, atoms.positions.shape)
    for _ in range(20):
        atoms.positions += drift
        found, wanted = step(atoms.positions), whole(atoms.positions)
        assert np.linalg.norm(found.forces - wanted.forces) < 3e-6 * np.linalg.norm(wanted.forces)
        assert abs(found.energy[0] - wanted.energy[0]) < 1e-6 * abs(wanted.energy[0])
    assert [part.mode for part in step.report().steps] == ["graph", "graph"]
    assert step.num_assignments > 2
    before = step.num_assignments
    atoms.positions[1, 0] += 1.6  # farther than the skin; one atom of two is looked at before an evaluation
    found, wanted = step(atoms.positions), whole(atoms.positions)
    assert np.linalg.norm(found.forces - wanted.forces) < 3e-6 * np.linalg.norm(wanted.forces)
    assert step.num_assignments == before + 1
    on_device = step(torch.from_numpy(atoms.positions).cuda())
    assert on_device.forces.device.type == "cuda"
    np.testing.assert_array_equal(on_device.forces.cpu().numpy(), step(atoms.positions).forces)


@pytest.mark.gpu
@pytest.mark.parametrize("devices", [["cuda", "cpu"], ["cpu", "cuda"]], ids="-".join)
def test_a_gpu_and_the_cpu_share_a_structure(devices):
    atoms, model = water(216), potential(torch.float32).cuda()
    found = divided(model, atoms, devices=devices, grid=(1, 1, 2))(atoms.positions)
    exact = evaluate(copy.deepcopy(model).double().cpu(), System.from_ase(atoms))
    assert np.linalg.norm(found.forces - exact.forces.numpy()) < 3e-6 * np.linalg.norm(exact.forces.numpy())
