"""An ensemble gives mean and spread of its members, wherever a potential is taken, and stops what it is told to stop.

The oracle evaluates every member on its own and leaves mean and standard deviation to NumPy.
"""

import copy
import re

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.io.trajectory import Trajectory
from ase.md.verlet import VelocityVerlet
from model_kinds import coulomb, zbl
from structures import STRUCTURES

import torchmdx
from torchmdx import Calculator, CapturedStep, Ensemble, StepPool, System, evaluate
from torchmdx.step.padding import padded_size
from torchmdx.step.results import AuditError, NonFiniteError, SpreadError

SEEDS = (2, 3, 4)


@pytest.fixture(scope="module")
def several(trained):
    """several(device, dtype): potentials of three seeds, with tables or kernels in float32. Not to be changed."""

    def make(device, dtype=torch.float32):
        return [trained(device, dtype, seed) for seed in SEEDS]

    return make


@pytest.fixture(scope="module")
def small(make_potential):
    return [make_potential(seed=seed) for seed in SEEDS]


def insist(device):
    return "graph" if device == "cuda" else "auto"


def repeats(device, dtype):
    """Whether sums have one order: on a GPU only those of the kernels do."""
    return device == "cpu" or dtype == torch.float32


def oracle(results):
    """Mean and sample standard deviation over members, of whatever each of them has; NumPy arrays."""
    stacked = {
        name: np.stack([np.asarray(torch.as_tensor(getattr(result, name)).cpu(), dtype=float) for result in results])
        for name in ("energy", "energies", "forces", "stress", "charges", "dipoles")
        if getattr(results[0], name, None) is not None
    }
    found = {name: values.mean(0) for name, values in stacked.items()}
    found["energy_spread"] = stacked["energy"].std(0, ddof=1)
    deviations = stacked["forces"] - found["forces"]
    found["force_spread"] = np.sqrt((deviations**2).sum((0, 2)) / (len(results) - 1))
    return found


def assert_oracle(result, wanted, tolerance=1e-12):
    for name, value in wanted.items():
        got = np.asarray(torch.as_tensor(getattr(result, name)).cpu())
        np.testing.assert_allclose(got, value, rtol=tolerance, atol=tolerance, err_msg=name)


# -- the exact model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_evaluate_gives_mean_and_spread(small, name, request):
    system = System.from_ase(request.getfixturevalue(name))
    found = evaluate(Ensemble(small), system, stress=True)
    assert_oracle(found, oracle([evaluate(member, system, stress=True) for member in small]))


def test_forces_are_the_derivative_of_the_mean_energy(small, crystal):
    ensemble, step = Ensemble(small), 1e-4

    def energy(positions):
        atoms = crystal.copy()
        atoms.positions = positions
        return float(evaluate(ensemble, System.from_ase(atoms), forces=False).energy)

    forces = evaluate(ensemble, System.from_ase(crystal)).forces.numpy()
    for atom, axis in np.ndindex(3, 3):
        moved = np.zeros((3, 3))
        moved[atom, axis] = step
        slope = (energy(crystal.positions + moved) - energy(crystal.positions - moved)) / (2 * step)
        assert forces[atom, axis] == pytest.approx(-slope, abs=1e-6)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_members_that_are_equal_have_no_spread(trained, ethanol, count, dtype, device, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.few_atoms.MOST_ONE_LAUNCH", 0)  # a single potential in the same kernels
    potential, system = trained(device, dtype), System.from_ase(ethanol)
    ensemble = Ensemble([potential] * count)
    alone = CapturedStep(potential, system, mode=insist(device), energies=True)(ethanol.positions)
    found = CapturedStep(ensemble, system, mode=insist(device), energies=True)(ethanol.positions)
    rounding = 0.0 if repeats(device, dtype) else 1e-11
    assert found.energy_spread.max() <= rounding
    assert found.force_spread.max() <= rounding
    for name in ("energy", "energies", "forces"):
        np.testing.assert_allclose(getattr(found, name), getattr(alone, name), rtol=0, atol=rounding)
    exact = evaluate(ensemble, system)
    assert float(exact.energy_spread.max() + exact.force_spread.max()) <= (0.0 if device == "cpu" else 1e-4)


def test_the_mean_can_be_differentiated_again(small, ethanol):
    result = evaluate(Ensemble(small), System.from_ase(ethanol), create_graph=True)
    assert not result.energy_spread.requires_grad
    assert not result.force_spread.requires_grad
    # No weight wants gradients here; positions do, inside: the mean still has a graph.
    assert result.forces.requires_grad


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_a_step_equals_separate_steps(several, name, dtype, device, request, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.few_atoms.MOST_ONE_LAUNCH", 0)  # a single potential in the same kernels
    atoms, members = request.getfixturevalue(name), several(device, dtype)
    options = dict(mode=insist(device), stress=True, energies=True)
    together = CapturedStep(Ensemble(members), System.from_ase(atoms), **options)
    apart = [CapturedStep(member, System.from_ase(atoms), **options) for member in members]
    rng, exactly = np.random.default_rng(0), repeats(device, dtype)
    for _ in range(4):
        positions, cell = atoms.positions + rng.normal(scale=0.05, size=(len(atoms), 3)), 1.02 * atoms.cell.array
        found = together(positions, cell)
        assert_oracle(found, oracle([step(positions, cell) for step in apart]), 1e-12 if exactly else 1e-9)
        again = together(positions, cell)
        for what in ("energy", "energies", "forces", "stress", "energy_spread", "force_spread"):
            np.testing.assert_allclose(getattr(again, what), getattr(found, what), rtol=0, atol=0 if exactly else 1e-10)
        assert found.force_spread.max() > 0.1
    assert together.mode == ("graph" if device == "cuda" else "eager")


def test_a_batch_has_a_spread_for_each_system(several, ethanol, crystal, device):
    members, structures = several(device), [ethanol, crystal]
    found = CapturedStep(Ensemble(members), [System.from_ase(a) for a in structures], mode=insist(device))(
        np.concatenate([atoms.positions for atoms in structures]),
        np.stack([atoms.cell.array for atoms in structures]),
    )
    start = 0
    for k, atoms in enumerate(structures):
        alone = CapturedStep(Ensemble(members), System.from_ase(atoms), mode=insist(device))(atoms.positions)
        assert found.energy_spread[k] == pytest.approx(alone.energy_spread[0], rel=1e-4)
        own = found.force_spread[start : start + len(atoms)]
        np.testing.assert_allclose(own, alone.force_spread, atol=2e-5 * alone.force_spread.max())
        start += len(atoms)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tensornet2_and_priors_can_be_members(make_potential, cation, dtype, device):
    charged = [make_potential(dtype, seed, "tensornet2", [coulomb]).to(device) for seed in SEEDS]
    repelled = [make_potential(dtype, seed, priors=[zbl]).to(device) for seed in SEEDS]
    mixed = [make_potential(dtype, 0).to(device), make_potential(dtype, 0, "tensornet2", num_layers=1).to(device)]
    system = System.from_ase(cation)
    for members in (charged, repelled, mixed):
        ensemble = Ensemble(members)
        assert ensemble.predicts_charges == (members is charged)
        step = CapturedStep(ensemble, system, mode=insist(device), energies=True)
        found = step(cation.positions)
        apart = oracle([CapturedStep(member, system, energies=True)(cation.positions) for member in members])
        assert_oracle(found, apart, 1e-10 if dtype == torch.float64 else 2e-5)
        exact = evaluate(ensemble, system)
        wanted = oracle([evaluate(member, system) for member in sorted(members, key=lambda m: m.predicts_charges)])
        assert_oracle(exact, wanted, 1e-10 if dtype == torch.float64 else 2e-5)
        assert ("charges" in wanted, exact.charges is not None) == (members is charged,) * 2
    calculator = Calculator(charged, dtype="float64", device=device)
    cation.calc = calculator
    apart = [evaluate(copy.deepcopy(member).double(), system).charges.cpu().numpy() for member in charged]
    assert np.std(apart, axis=0).max() > 1e-3
    np.testing.assert_allclose(cation.get_charges(), np.mean(apart, 0), atol=1e-6 if dtype == torch.float32 else 1e-10)


def test_members_on_lists_of_pairs(make_potential, crystal):
    """What a GPU takes for members without kernels: each has lists of its own, which grow with the step's."""
    members = [make_potential(torch.float64, seed, "tensornet2", [coulomb]) for seed in SEEDS]
    atoms = crystal.repeat((2, 1, 1))
    step = CapturedStep(Ensemble(members), System.from_ase(atoms), stress=True, energies=True, engine="pairs")
    for scale in (1.0, 0.8):
        atoms.set_cell(crystal.repeat((2, 1, 1)).cell * scale, scale_atoms=True)
        wanted = oracle([evaluate(member, System.from_ase(atoms), stress=True) for member in members])
        del wanted["charges"], wanted["dipoles"]  # a step does not give them
        assert_oracle(step(atoms.positions, atoms.cell.array), wanted, 1e-9)
    assert step.num_recoveries >= 1
    assert step.report().engine == "3 members: pairs, float64"


def test_an_overflow_is_recovered_and_gives_no_alarm(several, crystal, device):
    """The list of the first try is too short, its forces wrong and far apart: only those of the second count."""
    members, atoms = several(device), crystal.repeat(2)
    loose = 1.6 * atoms.positions, 1.6 * atoms.cell.array
    wide = atoms.copy()
    wide.positions, wide.cell = loose
    wanted = CapturedStep(Ensemble(members), System.from_ase(atoms))(atoms.positions, atoms.cell.array)
    limit = 1.001 * float(wanted.force_spread.max())
    step = CapturedStep(Ensemble(members), System.from_ase(wide), mode=insist(device), max_force_spread=100 * limit)
    for _ in range(4):
        step(*loose)
    step.buffers.most.fill_(limit)
    found = step(atoms.positions, atoms.cell.array)
    assert step.num_recoveries == 1
    np.testing.assert_allclose(found.force_spread, wanted.force_spread, atol=1e-5 * limit)
    assert step.mode == ("graph" if device == "cuda" else "eager")


def test_the_report_counts_members(several, ethanol, device):
    ensemble = CapturedStep(Ensemble(several(device)), System.from_ase(ethanol))
    single = CapturedStep(several(device)[0], System.from_ase(ethanol))
    report = ensemble.report()
    assert (report.members, single.report().members) == (3, None)
    assert "3 members" in report.engine
    assert re.search(r"members +3\n", str(report))
    assert "members" not in str(single.report())


def test_an_audit_sees_one_wrong_member(several, ethanol, device, monkeypatch):
    """Two members wrong by opposite amounts leave the mean right: the audit looks at the spread as well."""
    step = CapturedStep(Ensemble(several(device)), System.from_ase(ethanol), mode="eager", audit_every=1)
    step(ethanol.positions)
    assert step.error < 1e-5
    first, second = step.engine.engines[:2]
    for engine, sign in ((first, 1.0), (second, -1.0)):
        monkeypatch.setattr(engine, "run", wrong_by(engine.run, 0.3 * sign))
    with pytest.raises(AuditError, match="the audit of evaluation 2: its forces differ from the exact model's"):
        step(ethanol.positions)


def wrong_by(run, amount):
    def changed(*arguments, **options):
        outputs = run(*arguments, **options)
        outputs.forces[0, 0] += amount
        return outputs

    return changed


def test_what_is_not_finite_is_named_and_is_no_spread(several, ethanol, device):
    step = CapturedStep(Ensemble(several(device)), System.from_ase(ethanol), mode=insist(device), max_force_spread=100)
    step(ethanol.positions)
    bad = ethanol.positions.copy()
    bad[2, 1] = np.nan
    with pytest.raises(NonFiniteError, match="atom 2$"):
        step(bad)
    step(ethanol.positions)


@pytest.mark.parametrize("kind", ["as it is", "padded"])
def test_padding_has_no_part_in_it(several, ethanol, cation, device, kind, monkeypatch):
    if kind == "padded":
        monkeypatch.setattr(StepPool, "_size", lambda self, count: padded_size(count))
    ensemble = Ensemble(several(device))
    pool = StepPool(ensemble)
    for atoms in (ethanol, cation, ethanol):
        found = pool(System.from_ase(atoms))
        alone = CapturedStep(ensemble, System.from_ase(atoms))(atoms.positions)
        assert (found.energy_spread.shape, found.force_spread.shape) == ((1,), (len(atoms),))
        np.testing.assert_allclose(found.energy_spread, alone.energy_spread, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.force_spread, alone.force_spread, atol=2e-5)
    slot = pool.steps[-1].buffers.outputs["force_spread"].cpu()
    assert len(slot) == (16 if kind == "padded" or device == "cuda" else len(ethanol))
    assert (slot[len(ethanol) :] == 0).all()


@pytest.mark.gpu
def test_members_are_branches_of_one_graph(several, ethanol, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.few_atoms.MOST_ONE_LAUNCH", 0)  # a single potential in the same kernels
    members = several("cuda")
    single, ensemble = (
        CapturedStep(potential, System.from_ase(ethanol), mode="graph") for potential in (members[0], Ensemble(members))
    )
    for step in (single, ensemble):
        step(ethanol.positions)
    assert len(ensemble.engine.streams) == 2
    assert "side by side" in ensemble.report().engine_why
    assert ensemble.report().nodes < 3 * single.report().nodes


@pytest.mark.gpu
def test_members_of_a_large_system_take_turns(several, crystal, monkeypatch):
    monkeypatch.setattr("torchmdx.engines.plan.members.MOST_SIDE_BY_SIDE", 8)
    atoms, ensemble = crystal.repeat(2), Ensemble(several("cuda"))
    turns = CapturedStep(ensemble, System.from_ase(atoms), mode="graph")
    monkeypatch.undo()
    together = CapturedStep(ensemble, System.from_ase(atoms), mode="graph")
    assert (turns.engine.streams, len(together.engine.streams)) == ([], 2)
    one, other = turns(atoms.positions), together(atoms.positions)
    for name in ("energy", "forces", "energy_spread", "force_spread"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    buffers = [engine.model.buffers for engine in turns.engine.engines]
    assert buffers[0].scratch.a.data_ptr() == buffers[2].scratch.a.data_ptr()


# -- ASE ---------------------------------------------------------------------------------------------------------------


def on(device):
    """Kernels on a GPU; on the CPU the exact model, which needs no second for the tables of every calculator."""
    return dict(device=device, dtype="float32" if device == "cuda" else "float64")


def test_the_calculator_gives_both_spreads(several, crystal, device, tmp_path):
    members = several(device)
    apart = []
    for member in members:
        crystal.calc = Calculator(member, **on(device))
        forces = crystal.get_forces()
        apart.append((crystal.get_potential_energy(), forces, crystal.get_stress()))
    energies, forces, stresses = (np.stack(values) for values in zip(*apart, strict=True))
    crystal.calc = calculator = Calculator(members, **on(device))
    # On a GPU the members alone may take other kernels than those of an ensemble.
    error = 1e-9 if device == "cpu" else 5e-6
    assert crystal.get_potential_energy() == pytest.approx(energies.mean(), abs=error)
    np.testing.assert_allclose(crystal.get_forces(), forces.mean(0), atol=error)
    np.testing.assert_allclose(crystal.get_stress(), stresses.mean(0), atol=1e-6)
    wanted = np.sqrt(((forces - forces.mean(0)) ** 2).sum((0, 2)) / 2)
    assert calculator.results["energy_spread"] == pytest.approx(energies.std(ddof=1), abs=error)
    np.testing.assert_allclose(calculator.results["forces_spread"], wanted, atol=error)
    np.testing.assert_allclose(calculator.get_property("forces_spread", crystal), wanted, atol=error)
    assert calculator.get_property("energy_spread", crystal) == calculator.results["energy_spread"]
    assert repr(calculator).startswith("torchmdx.Calculator(3 potentials, float")
    for name in ("frame.traj", "frame.xyz"):  # ASE's writers take what they know of the results
        ase.io.write(tmp_path / name, crystal)
        np.testing.assert_allclose(ase.io.read(tmp_path / name).get_forces(), crystal.get_forces(), atol=1e-6)
    assert "energy_spread" not in Calculator(members[0], **on(device)).implemented_properties


def dynamics(atoms, calculator, path):
    atoms.calc = calculator
    trajectory = Trajectory(path, "w", atoms)
    run = VelocityVerlet(atoms, 0.5 * units.fs)
    run.attach(trajectory.write)
    return run, trajectory


@pytest.mark.nightly
def test_a_limit_stops_dynamics_and_keeps_the_frame(several, ethanol, tmp_path, device):
    """A limit a little above what the molecule has at first, passed when it is pulled apart."""
    members, file = several(device), tmp_path / "far.xyz"
    ethanol.info["charge"] = 0
    ethanol.calc = probe = Calculator(members, **on(device))
    ethanol.get_forces()
    start = probe.results["forces_spread"].max()
    ethanol.set_velocities(0.5 * (ethanol.positions - ethanol.get_center_of_mass()))
    limit = 1.01 * start
    calculator = Calculator(members, max_force_spread=limit, spread_file=file, **on(device))
    run, trajectory = dynamics(ethanol, calculator, tmp_path / "run.traj")
    said = rf"the force spread of the ensemble must be at most {limit:g} eV/Å, got [\d.]+ eV/Å at atom \d; its frame"
    with pytest.raises(SpreadError, match=said) as caught:
        run.run(400)
    trajectory.close()
    frames = ase.io.read(tmp_path / "run.traj", ":")
    assert len(frames) == run.nsteps + 1 > 1
    (kept,) = ase.io.read(file, ":")
    np.testing.assert_allclose(kept.positions, caught.value.frame.positions, atol=1e-7)
    probe.calculate(kept)
    np.testing.assert_allclose(kept.arrays["forces_spread"], probe.results["forces_spread"], atol=1e-4)
    np.testing.assert_allclose(kept.get_forces(), probe.results["forces"], atol=1e-4)
    assert kept.get_potential_energy() == pytest.approx(probe.results["energy"], abs=1e-4)
    assert kept.info["energy_spread"] == pytest.approx(probe.results["energy_spread"], rel=1e-3)
    assert kept.arrays["forces_spread"].argmax() == caught.value.atom
    assert kept.arrays["forces_spread"].max() > limit
    for frame in frames:
        probe.calculate(frame)
        assert probe.results["forces_spread"].max() <= limit * (1 + 1e-5)


def test_frames_are_added_and_one_asked_for_again_is_not(several, crystal, tmp_path, device):
    file = tmp_path / "uncertain.xyz"
    crystal.calc = Calculator(several(device), max_force_spread=1e-6, spread_file=str(file), **on(device))
    for ask in (crystal.get_potential_energy, crystal.get_forces):
        with pytest.raises(SpreadError, match=re.escape(f"its frame was appended to {str(file)!r}")):
            ask()
    assert len(ase.io.read(file, ":")) == 1
    crystal.rattle(0.01)
    with pytest.raises(SpreadError):
        crystal.get_forces()
    first, second = ase.io.read(file, ":")
    np.testing.assert_allclose(second.positions, crystal.positions, atol=1e-7)
    np.testing.assert_allclose(second.cell.array, crystal.cell.array, atol=1e-7)
    assert first.pbc.all()


def test_a_frame_that_cannot_be_kept_does_not_hide_why(several, ethanol, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    ethanol.calc = Calculator(several("cpu"), max_force_spread=1e-6, spread_file=folder / "x.xyz", **on("cpu"))
    folder.rmdir()
    with pytest.raises(SpreadError, match="force spread .*; its frame could not be appended to .*No such file"):
        ethanol.get_forces()


def test_a_step_with_a_limit_says_which_atom_of_which_system(several, ethanol, crystal, device):
    structures = [ethanol, crystal]
    positions = np.concatenate([atoms.positions for atoms in structures])
    cells = np.stack([atoms.cell.array for atoms in structures])
    systems = [System.from_ase(atoms) for atoms in structures]
    spread = CapturedStep(Ensemble(several(device)), systems)(positions, cells).force_spread
    limit = np.sort(spread)[-2]  # one atom is beyond it
    step = CapturedStep(Ensemble(several(device)), systems, mode=insist(device), max_force_spread=1.0001 * limit)
    with pytest.raises(SpreadError, match=f"at atom {spread.argmax()}$") as caught:
        step(positions, cells)
    own = structures[int(spread.argmax() >= len(ethanol))]
    np.testing.assert_array_equal(caught.value.frame.numbers, own.numbers)
    np.testing.assert_array_equal(caught.value.frame.positions, own.positions)
    np.testing.assert_array_equal(caught.value.frame.cell, own.cell.array)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_members_that_see_otherwise_are_refused(make_potential):
    one = make_potential(cutoff=4.0)
    far = make_potential(cutoff=4.5)
    with pytest.raises(ValueError, match="must have one cutoff: 'member 0' has 4.0 Å, 'member 2' has 4.5"):
        Ensemble([one, one, far])
    with pytest.raises(ValueError, match="must have one cutoff: 'a' has 4.0 Å, 'b' has 4.5"):
        Ensemble([one, far], names=["a", "b"])
    few = make_potential(cutoff=4.0, max_z=12)
    with pytest.raises(ValueError, match=r"one range of elements: 'member 0' has \d+ \(the last one\), .* has 12$"):
        Ensemble([one, few])
    reaching = make_potential(cutoff=4.0, priors=[coulomb], model="tensornet2")
    with pytest.raises(ValueError, match="one farthest cutoff, of its priors too,: 'member 0' has 4.0 Å, .* has 6.0"):
        Ensemble([one, reaching])
    other = make_potential(cutoff=4.0)
    other.reference_energies.zero_()
    other.reference_energies[[1, 6]] = 1.0
    with pytest.raises(ValueError, match=r"set of elements with reference energies: .*'member 1' has \[1, 6\]"):
        Ensemble([one, other])
    with pytest.raises(ValueError, match="one dtype: 'member 0' has torch.float64, 'member 1' has torch.float32"):
        Ensemble([one, make_potential(torch.float32, cutoff=4.0)])
    with pytest.raises(ValueError, match="an ensemble needs at least 2 potentials, got 1"):
        Ensemble([one])
    with pytest.raises(TypeError, match="an ensemble is made of Potentials, got a str"):
        Ensemble([one, "model.safetensors"])


def test_elements_beyond_a_member_are_refused(small):
    with pytest.raises(ValueError, match="this potential knows atomic numbers up to .*, got 79 for atom 1"):
        CapturedStep(Ensemble(small), System.from_ase(Atoms("HAu", [[0, 0, 0], [0, 0, 2]])))


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_must_be_a_limit(small, ethanol, limit):
    said = f"max_force_spread must be > 0 eV/Å and finite, got {limit}"
    with pytest.raises(ValueError, match=said):
        Calculator(small, dtype="float64", device="cpu", max_force_spread=limit)
    with pytest.raises(ValueError, match=said):
        CapturedStep(Ensemble(small), System.from_ase(ethanol), max_force_spread=limit)


def test_a_limit_needs_an_ensemble_and_a_file_a_limit(small, ethanol, tmp_path):
    with pytest.raises(ValueError, match="max_force_spread needs an ensemble, got 0.5 eV/Å with a single potential"):
        Calculator(small[0], device="cpu", max_force_spread=0.5)
    with pytest.raises(ValueError, match="spread_file needs max_force_spread, got 'x.xyz' without"):
        Calculator(small, device="cpu", spread_file="x.xyz")
    with pytest.raises(FileNotFoundError, match="spread_file must be in an existing folder, got .*nowhere"):
        Calculator(small, device="cpu", max_force_spread=0.5, spread_file=tmp_path / "nowhere" / "x.xyz")
    with pytest.raises(IsADirectoryError, match="spread_file must be a file, got the folder"):
        Calculator(small, device="cpu", max_force_spread=0.5, spread_file=tmp_path)
    with pytest.raises(TypeError, match="each member of an ensemble must be a Potential or a path, got int"):
        Calculator([small[0], 7], device="cpu")


def test_the_caller_keeps_his_potentials(small, ethanol):
    before = [member.dtype for member in small]
    calculator = Calculator(Ensemble(small), device="cpu", dtype="float32")
    assert calculator.potential.dtype == torch.float32
    assert [member.dtype for member in small] == before
    assert torchmdx.Ensemble is Ensemble
