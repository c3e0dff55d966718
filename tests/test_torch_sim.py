"""The torch-sim model: torch-sim's own validation, charges, swapped structures, what is noticed and refused."""

import copy
import warnings

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from structures import STRUCTURES

import torchmdx

torch_sim = pytest.importorskip("torch_sim")  # needs Python 3.12
autobatching = pytest.importorskip("torch_sim.autobatching")
interface = pytest.importorskip("torch_sim.models.interface")
testing = pytest.importorskip("torch_sim.testing")
LennardJonesModel = pytest.importorskip("torch_sim.models.lennard_jones").LennardJonesModel
TorchmdxModel = pytest.importorskip("torchmdx.torch_sim").TorchmdxModel

CPU = torch.device("cpu")


@pytest.fixture
def model(potential) -> object:
    return TorchmdxModel(potential, precision="float64", device="cpu")


def state_of(*structures, dtype=torch.float64):
    return torch_sim.io.atoms_to_state(list(structures), CPU, dtype)


def expected(model, atoms) -> tuple[float, np.ndarray]:
    atoms = atoms.copy()
    atoms.calc = torchmdx.Calculator(model.potential, dtype="float64", device="cpu")
    return atoms.get_potential_energy(), atoms.get_forces()


def require_equal(model, structures, results) -> None:
    start = 0
    for energy, atoms in zip(results["energy"], structures, strict=True):
        wanted, forces = expected(model, atoms)
        assert energy.item() == pytest.approx(wanted, rel=1e-12)
        np.testing.assert_allclose(results["forces"][start : start + len(atoms)], forces, rtol=0, atol=1e-11)
        start += len(atoms)


def test_torch_sims_own_validation(model):
    interface.validate_model_outputs(model, CPU, torch.float64)


def test_validation_in_float32(make_potential):
    potential = make_potential(torch.float32)
    interface.validate_model_outputs(TorchmdxModel(potential, dtype=torch.float32, device="cpu"), CPU, torch.float32)


@pytest.mark.parametrize("name", [name for name in STRUCTURES if name not in ("wire", "bare_slab", "cation")])
def test_consistency_with_the_calculator(name, model, request):
    atoms = request.getfixturevalue(name)
    model.compute_stress = atoms.cell.rank == 3
    calculator = torchmdx.Calculator(model.potential, dtype="float64", device="cpu")
    tolerances = {f"{what}_{kind}": 1e-10 for what in ("energy", "force", "stress") for kind in ("rtol", "atol")}
    testing.assert_model_calculator_consistency(model, calculator, state_of(atoms), **tolerances)


def test_charges(model, cation, ethanol):
    state = torch_sim.io.atoms_to_state([cation, ethanol], CPU, torch.float64)
    neutral = model(state)
    state = type(state).from_state(state, charge=torch.tensor([1.0, 0.0]))
    charged = model(state)
    require_equal(model, [cation, ethanol], charged)
    assert abs(charged["energy"][0] - neutral["energy"][0]) > 1e-6
    state.charge = torch.tensor([0.0, 0.0])
    torch.testing.assert_close(model(state)["energy"], neutral["energy"])
    wrong = type("State", (), {"charge": torch.zeros(3), "positions": state.positions, "n_systems": 2})
    with pytest.raises(ValueError, match=r"charge must have shape \[2\], one for each system, got \[3\]"):
        model(wrong)


def test_partial_charges_are_part_of_the_composition(model, ethanol):
    state = state_of(ethanol)
    model(state)
    state = type(state).from_state(state, partial_charges=torch.zeros(9, dtype=torch.float64))
    model(state)
    assert model.pool.steps[-1].batch.partial_charges is not None


def test_an_unchanged_composition_is_not_taken_again(model, ethanol, monkeypatch):
    taken = []
    hold = model.pool.hold
    monkeypatch.setattr(model.pool, "hold", lambda batch: (taken.append(batch.num_atoms), hold(batch)))
    state = state_of(ethanol, molecule("CH4"))
    for _ in range(3):
        state.positions = state.positions + 0.01
        model(state)
    model(state.clone())  # equal values in other tensors
    assert taken == [14]
    state.atomic_numbers[-1] = 9  # in place
    results = model(state)
    assert taken == [14, 14]
    fluoride = molecule("CH4")
    fluoride.numbers[-1] = 9
    assert results["energy"][1].item() == pytest.approx(expected(model, fluoride)[0], rel=1e-12)


def test_a_changed_cell_is_noticed(model):
    """Replaced, changed in place, and changed by an evaluation that failed."""
    crystal = bulk("C", "diamond", 3.57)
    state = state_of(crystal)

    def require() -> None:
        for _ in range(2):
            require_equal(model, state.to_atoms(), model(state))

    require()
    state.cell = state.cell * 1.02
    require()
    state.cell.mul_(0.97)
    require()
    good, wrong = state.cell, state.cell * 1.1
    state.cell = wrong
    state.positions[0, 0] = float("nan")
    with pytest.raises(ArithmeticError):
        model(state)
    state.cell = good
    state.positions[0, 0] = 0.0
    require()


def test_tensors_of_inference_mode_are_compared_by_value(model, ethanol):
    with torch.inference_mode():
        state = state_of(ethanol)
        first = model(state)["energy"].item()
        state.atomic_numbers[0] = 7
        assert model(state)["energy"].item() != first


def test_results_are_the_callers_own(model, ethanol):
    state = state_of(ethanol)
    first = model(state)
    kept = copy.deepcopy(first)
    state.positions = state.positions * 1.01
    model(state)
    for name, values in first.items():
        torch.testing.assert_close(values, kept[name], rtol=0, atol=0)


def test_relaxations_with_swaps_end_at_minima(model):
    """Every structure ends at the forces that its calculator computes, whichever batches it was in."""
    model = TorchmdxModel("organic-1", precision="float64", device="cpu", compute_stress=False)
    names = ("CH3CH2OH", "H2O", "CH4", "CH3OH", "NH3", "C2H4", "H2CO")
    structures = [molecule(name) for name in names]
    for seed, atoms in enumerate(structures):
        atoms.rattle(0.05, seed=seed)
    final = torch_sim.optimize(
        structures,
        model,
        optimizer=torch_sim.Optimizer.fire,
        convergence_fn=torch_sim.generate_force_convergence_fn(force_tol=0.05, include_cell_forces=False),
        autobatcher=autobatching.InFlightAutoBatcher(model, memory_scales_with="n_atoms", max_memory_scaler=20.0),
        max_steps=400,
    )
    assert len(model.pool.steps) > 1
    for atoms in torch_sim.io.state_to_atoms(final):
        _, forces = expected(model, atoms)
        assert np.linalg.norm(forces, axis=1).max() < 0.05


def test_total_energy_is_conserved():
    model = TorchmdxModel("organic-1", device="cpu", compute_stress=False)
    ethanol = molecule("CH3CH2OH")
    energies = []
    state = torch_sim.integrate(
        [ethanol] * 3,
        model,
        integrator=torch_sim.Integrator.nve,
        n_steps=5,
        temperature=300.0,
        timestep=0.0005,
    )
    for _ in range(4):
        state = torch_sim.integrate(
            state, model, integrator=torch_sim.Integrator.nve, n_steps=20, temperature=300.0, timestep=0.0005
        )
        kinetic = torch_sim.calc_kinetic_energy(masses=state.masses, momenta=state.momenta, system_idx=state.system_idx)
        energies.append(state.energy + kinetic)
    drift = torch.stack(energies) - energies[0]
    assert drift.abs().max() < 5e-3


def test_autobatchers_need_no_trial_on_the_cpu(model, ethanol):
    state = state_of(*[ethanol] * 4)
    most = model.max_memory_scaler(state)
    assert most > 1000
    batcher = autobatching.BinningAutoBatcher(
        model, memory_scales_with=model.memory_scales_with, max_memory_scaler=20.0
    )
    batcher.load_states(state)
    assert [batch.n_atoms for batch, _ in batcher] == [18, 18]


def test_results_can_be_fewer(model, ethanol):
    state = state_of(ethanol)
    model.compute_stress = model.compute_forces = False
    assert set(model(state)) == {"energy"}
    model.compute_stress = model.compute_forces = True
    assert set(model(state)) == {"energy", "forces", "stress"}
    assert not model(state)["stress"].any()  # a molecule has no volume


def test_ensembles_give_spreads(make_potential, ethanol):
    members = [make_potential(torch.float64, seed=seed) for seed in (1, 2)]
    model = TorchmdxModel(members, precision="float64", device="cpu")
    results = model(state_of(ethanol, molecule("CH4")))
    assert results["energy_spread"].shape == (2,)
    assert results["force_spread"].shape == (14,)
    assert results["force_spread"].max() > 0


def test_it_sums_with_other_models(model):
    structure = bulk("C", "diamond", a=3.6, cubic=True)
    state = state_of(structure)
    other = LennardJonesModel(sigma=1.0, epsilon=0.01, cutoff=2.0, compute_stress=True, dtype=torch.float64)
    both = interface.SumModel(model, other)
    torch.testing.assert_close(both(state)["forces"], model(state)["forces"] + other(state)["forces"])


def test_doubts_are_raised_once(ethanol):
    model = TorchmdxModel(device="cpu")
    box = ethanol.copy()
    box.set_cell(9 * np.eye(3))
    box.pbc = True
    with pytest.warns(UserWarning, match="without any periodic structure"):
        model(state_of(box))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(state_of(box, box))
    with pytest.warns(UserWarning, match="closed shells"):
        model(state_of(molecule("CH3")))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"precision": "float16"}, ValueError, "precision must be one of float32, .*, got 'float16'"),
        ({"dtype": torch.float16}, ValueError, "dtype must be torch.float32 or torch.float64, got torch.float16"),
        ({"device": "gpu"}, ValueError, "device must be cpu or cuda, got 'gpu'"),
        ({"mode": "fast"}, ValueError, "mode must be one of auto, graph, eager, got 'fast'"),
        ({"potential": 3}, TypeError, "potential must be a Potential or a path, got int"),
    ],
)
def test_bad_settings(settings, error, message):
    with pytest.raises(error, match=message):
        TorchmdxModel(**{"device": "cpu", **settings})


def test_unknown_elements_are_refused_and_leave_no_results(model, ethanol):
    state = state_of(ethanol)
    good = model(state)["energy"]
    uranium = molecule("CH4")
    uranium.numbers[0] = 92
    with pytest.raises(ValueError, match="U|92"):
        model(state_of(ethanol, uranium))
    torch.testing.assert_close(model(state)["energy"], good)


@pytest.mark.gpu
def test_validation_on_a_gpu(make_potential):
    model = TorchmdxModel(make_potential(torch.float32), device="cuda", mode="graph")
    interface.validate_model_outputs(model, torch.device("cuda"), torch.float64)
    state = torch_sim.initialize_state([molecule("CH3CH2OH")] * 8, model.device, model.dtype)
    assert model.max_memory_scaler(state) > 10_000
    assert model.pool.steps[-1].mode == "graph"
