"""Captured steps agree with the exact model through moves, growth and failures: eager, and as a graph on a GPU."""

import copy
import logging

import numpy as np
import pytest
import torch

from torchmdx import Batch, System, evaluate
from torchmdx.neighbors.capacity import CapacityError
from torchmdx.step import captured_step as step_module
from torchmdx.step import change as step_change
from torchmdx.step.batch_pool import BatchPool
from torchmdx.step.captured_step import REFRESH_EVERY, CapturedStep
from torchmdx.step.divided_pool import DividedPool
from torchmdx.step.divided_step import DividedStep
from torchmdx.step.pool import StepPool
from torchmdx.step.results import NonFiniteError

# Relative error of forces against float64: tables within 1e-6, rounding, and the cancellation of a small molecule.
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-6}


def insist(device):
    """Mode "graph" on a GPU."""
    return "graph" if device == "cuda" else "auto"


def exact(potential, atoms, positions=None, cell=None, stress=False):
    """The reference in float64, as NumPy arrays, at other positions or in another cell if given."""
    atoms = atoms.copy()
    atoms.positions = atoms.positions if positions is None else positions
    if cell is not None:
        atoms.set_cell(cell)
    model = copy.deepcopy(potential).double()
    result = evaluate(model, System.from_ase(atoms, device=potential.device), stress=stress)
    names = ("energy", "energies", "forces", "stress") if stress else ("energy", "energies", "forces")
    return {name: getattr(result, name).cpu().numpy() for name in names}


def assert_close(got, wanted, tolerance=CLOSE[torch.float32]):
    assert np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max()


def frames(atoms, count, seed=0, strain=0.04):
    """Positions and cells of a structure that jitters while its cell breathes and shears."""
    rng = np.random.default_rng(seed)
    start, offsets = atoms.copy(), np.zeros_like(atoms.positions)
    for k in range(count):
        offsets = 0.9 * offsets + rng.normal(scale=0.03, size=offsets.shape)
        shape = np.eye(3) + strain * np.sin(0.1 * k) * np.array([[1, 0.5, 0], [0, -1, 0.3], [0, 0, 0.7]])
        yield start.positions @ shape + offsets, start.cell.array @ shape


@pytest.mark.nightly_for("dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", ["tensornet", "tensornet2"])
def test_energies_without_forces(make_potential, crystal, dtype, model):
    potential = make_potential(dtype, model=model)
    step = CapturedStep(potential, System.from_ase(crystal), audit_every=5)
    for k, (positions, cell) in enumerate(frames(crystal, 6)):
        alone = step(positions, cell, forces=False)
        audited = k == 2  # the fifth evaluation
        assert (alone.forces is None) is not audited
        energy = alone.energy.copy()
        both = step(positions, cell)
        assert both.energy == pytest.approx(energy, rel=1e-6 if dtype == torch.float32 else 1e-12)
        assert_close(both.forces, exact(potential, crystal, positions, cell)["forces"], CLOSE[dtype])
    stressed = CapturedStep(potential, System.from_ase(crystal), stress=True)(crystal.positions, forces=False)
    assert stressed.forces is not None
    assert stressed.stress is not None


def test_forces_that_are_not_finite_do_not_spoil_a_later_energy(potential, ethanol):
    step = CapturedStep(potential, System.from_ase(ethanol))
    wanted = step(ethanol.positions).energy.copy()
    broken = ethanol.positions.copy()
    broken[2, 1] = np.nan
    with pytest.raises(NonFiniteError):
        step(broken)
    assert step(ethanol.positions, forces=False).energy == pytest.approx(wanted, rel=1e-12)
    with pytest.raises(NonFiniteError):
        step(broken, forces=False)


def test_moving_frames_with_a_changing_cell(trained, crystal, device):
    potential, atoms = trained(device), crystal.repeat(2)
    graph, eager = (
        CapturedStep(potential, System.from_ase(atoms), mode=mode, stress=True, energies=True)
        for mode in (insist(device), "eager")
    )
    count, looks = (1000, 50) if device == "cuda" else (50, 10)
    for k, (positions, cell) in enumerate(frames(atoms, count)):
        found, wanted = graph(positions, cell), eager(positions, cell)
        for name in ("energy", "energies", "forces", "stress"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=f"{name} of frame {k}")
        if k % looks == 0:
            reference = exact(potential, atoms, positions, cell, stress=True)
            assert_close(found.forces, reference["forces"])
            assert_close(found.stress, reference["stress"], 3e-5)
            assert np.abs(found.energies - reference["energies"]).max() < 1e-5
    assert graph.num_evaluations == count
    assert graph.mode == ("graph" if device == "cuda" else "eager")
    assert eager.mode == "eager"


def test_coordinates_of_a_large_box_are_not_rounded(trained, crystal, device):
    """In a box of 100 Å float32 coordinates are off by up to 4e-6 Å, which would be visible in the forces."""
    potential, atoms = trained(device), crystal.repeat(2)
    atoms.set_cell(100.0 * np.eye(3))
    atoms.positions += 71.234567
    rounded = exact(potential, atoms, positions=atoms.positions.astype(np.float32).astype(float))["forces"]
    wanted = exact(potential, atoms)["forces"]
    found = CapturedStep(potential, System.from_ase(atoms), mode=insist(device))(atoms.positions).forces
    assert np.linalg.norm(found - wanted) < 0.3 * np.linalg.norm(rounded - wanted)
    assert np.linalg.norm(found - wanted) < 3e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_structure_gets_the_exact_models_numbers(trained, structure, device, dtype):
    potential = trained(device, dtype)
    step = CapturedStep(potential, System.from_ase(structure), mode=insist(device), stress=True, energies=True)
    wanted = exact(potential, structure, stress=True)
    found = step(structure.positions, structure.cell.array)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    assert_close(found.forces, wanted["forces"], tolerance)
    assert np.abs(found.energies - wanted["energies"]).max() < tolerance
    assert abs(found.energy - wanted["energy"]).max() < tolerance * len(structure)
    if np.isnan(wanted["stress"]).any():
        assert np.isnan(found.stress).all()
    else:
        assert_close(found.stress, wanted["stress"], 10 * tolerance)
    assert all(array.dtype == np.float64 for array in (found.energy, found.energies, found.forces, found.stress))


def test_a_batch_gives_each_system_its_own_numbers(trained, ethanol, cation, crystal, device):
    potential, structures = trained(device), [ethanol, crystal, cation]
    step = CapturedStep(potential, [System.from_ase(a) for a in structures], mode=insist(device), stress=True)
    cells = np.stack([atoms.cell.array for atoms in structures])
    found = step(np.concatenate([atoms.positions for atoms in structures]), cells)
    wanted = [exact(potential, atoms, stress=True) for atoms in structures]
    np.testing.assert_allclose(found.energy, np.concatenate([w["energy"] for w in wanted]), atol=1e-4)
    start = 0
    for w in wanted:
        count = len(w["forces"])
        assert_close(found.forces[start : start + count], w["forces"])
        start += count
    assert_close(found.stress[1:2], wanted[1]["stress"], 3e-5)
    assert np.isnan(found.stress[[0, 2]]).all()


def test_only_requested_results_are_returned(trained, crystal, device):
    result = CapturedStep(trained(device), System.from_ase(crystal))(crystal.positions)
    assert result.energies is None
    assert result.stress is None


def read_only(array):
    array = np.array(array, dtype=float)
    array.flags.writeable = False
    return array


KINDS = {
    "numpy": np.array,
    "numpy, float32": lambda x: x.astype(np.float32),
    "numpy, transposed": lambda x: np.asfortranarray(x),
    "numpy, read-only": lambda x: read_only(x),
    "a list": lambda x: x.tolist(),
    "a tensor": torch.tensor,
    "a tensor, float32": lambda x: torch.tensor(x, dtype=torch.float32),
    "a tensor, transposed": lambda x: torch.tensor(x.T.copy()).T,
    "a tensor that wants gradients": lambda x: torch.tensor(x, requires_grad=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_positions_of_any_type_are_accepted_and_not_modified(trained, crystal, device, kind):
    step = CapturedStep(trained(device), System.from_ase(crystal), mode=insist(device))
    positions, cell = KINDS[kind](crystal.positions), KINDS[kind](crystal.cell.array)
    before = copy.deepcopy((positions, cell))
    found = step(positions, cell)
    later = step(crystal.positions + 0.1 * np.arange(9).reshape(3, 3), 1.1 * crystal.cell.array)
    wanted = exact(trained(device), crystal)["forces"]
    assert_close(found.forces, wanted)
    assert np.abs(later.forces - wanted).max() > 0.01
    for given, kept in zip((positions, cell), before, strict=True):
        np.testing.assert_array_equal(_array(given), _array(kept))
    assert isinstance(found.forces, np.ndarray)


def _array(value):
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.array(value)


def test_the_callers_system_is_not_modified(trained, crystal, device):
    system = System.from_ase(crystal, device=device)
    kept = [tensor.clone() for tensor in (system.positions, system.atomic_numbers, system.cell, system.pbc)]
    step = CapturedStep(trained(device), system, mode=insist(device))
    wanted = step(crystal.positions).forces
    step(crystal.positions + 0.1 * np.arange(9).reshape(3, 3), 1.1 * crystal.cell.array)
    now = (system.positions, system.atomic_numbers, system.cell, system.pbc)
    assert all(torch.equal(a, b) for a, b in zip(now, kept, strict=True))
    for tensor in now:  # nor does the step look at it again
        tensor.zero_()
    np.testing.assert_allclose(step(crystal.positions, crystal.cell.array).forces, wanted, rtol=0, atol=1e-9)


def test_results_are_copies_unless_views_are_requested(trained, ethanol, device):
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode=insist(device))
    copied = step(ethanol.positions)
    kept = copied.forces.copy()
    view = step(ethanol.positions, copy=False)
    np.testing.assert_array_equal(view.forces, kept)
    ethanol.rattle(0.1, seed=5)
    other = step(ethanol.positions)
    assert np.abs(other.forces - kept).max() > 0.01
    np.testing.assert_array_equal(copied.forces, kept)
    np.testing.assert_array_equal(view.forces, other.forces)
    copied.forces[:] = 7.0
    np.testing.assert_array_equal(step(ethanol.positions).forces, other.forces)


@pytest.mark.gpu
def test_cuda_tensors_come_back_for_cuda_tensors(trained, crystal):
    potential = trained("cuda")
    step = CapturedStep(potential, System.from_ase(crystal), mode="graph", stress=True)
    positions = torch.tensor(crystal.positions, device="cuda")
    kept = positions.clone()
    found = step(positions, torch.tensor(crystal.cell.array, device="cuda"))
    assert set(step.policy.graphs) == {"device"}
    assert all(value.is_cuda and value.dtype == torch.float64 for value in (found.energy, found.forces, found.stress))
    from_host = step(crystal.positions, crystal.cell.array)
    assert set(step.policy.graphs) == {"device", "host"}
    for name in ("energy", "forces", "stress"):
        np.testing.assert_array_equal(getattr(found, name).cpu(), getattr(from_host, name))
    assert torch.equal(positions, kept)
    view = step(positions, copy=False)
    step(positions + 0.1 * torch.arange(9, device="cuda").reshape(3, 3))
    assert not torch.equal(view.forces, found.forces)


@pytest.mark.gpu
def test_the_callers_stream_is_respected(trained, ethanol):
    step = CapturedStep(trained("cuda"), System.from_ase(ethanol), mode="graph")
    positions = torch.tensor(ethanol.positions, device="cuda")
    wanted = step(positions).forces.clone()
    late = torch.zeros_like(positions)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s: positions are there only after it
        late.copy_(positions)
        found = step(late).forces
        doubled = 2 * found
    stream.synchronize()
    assert torch.equal(found, wanted)
    assert torch.equal(doubled, 2 * wanted)


@pytest.mark.gpu
def test_a_cell_from_the_host_serves_positions_from_the_device_and_back(trained, crystal):
    potential = trained("cuda")
    step = CapturedStep(potential, System.from_ase(crystal), mode="graph")
    wider, widest = 1.05 * crystal.cell.array, 1.1 * crystal.cell.array
    on_device = torch.tensor(crystal.positions, device="cuda")
    step(crystal.positions, wider)
    assert_close(step(on_device).forces.cpu().numpy(), exact(potential, crystal, cell=wider)["forces"], 5e-5)
    step(on_device, torch.tensor(widest, device="cuda"))
    assert_close(step(crystal.positions).forces, exact(potential, crystal, cell=widest)["forces"], 5e-5)


def test_without_a_cell_the_last_one_stays(trained, crystal, device):
    potential = trained(device)
    step = CapturedStep(potential, System.from_ase(crystal), mode=insist(device))
    assert_close(step(crystal.positions).forces, exact(potential, crystal)["forces"])
    wider = 1.07 * crystal.cell.array
    found = step(crystal.positions, wider[None])
    np.testing.assert_array_equal(step(crystal.positions).forces, found.forces)
    assert_close(found.forces, exact(potential, crystal, cell=wider)["forces"])


# -- recovery ------------------------------------------------------------------------------------------------------


def test_overflow_in_mid_run_is_recovered(trained, crystal, device, caplog):
    """A shrinking cell has more pairs within the cutoff: the list grows, and all returned forces are right."""
    potential, atoms = trained(device), crystal.repeat(2)
    loose = 1.5 * atoms.positions, 1.5 * atoms.cell.array
    spread_out = atoms.copy()
    spread_out.positions, spread_out.cell = loose
    step = CapturedStep(potential, System.from_ase(spread_out), mode=insist(device))
    for _ in range(4):
        before = step(*loose)
    uncapped = CapturedStep(potential, System.from_ase(atoms), mode=insist(device))
    capacity = step.search.capacity
    with caplog.at_level(logging.INFO, "torchmdx.step.captured_step"):
        found = step(atoms.positions, atoms.cell.array)
    wanted = uncapped(atoms.positions, atoms.cell.array)
    assert (step.num_recoveries, uncapped.num_recoveries) == (1, 0)
    assert step.report().recoveries == 1
    assert step.search.capacity == uncapped.search.capacity > capacity
    assert [record.message for record in caplog.records if record.name == "torchmdx.step.captured_step"] == [
        f"neighbour list needed {int(step.search.edges.needed)} edges, had {capacity}: grown to {step.search.capacity}"
    ]
    assert_close(found.forces, wanted.forces)
    assert_close(found.forces, exact(potential, atoms)["forces"])
    assert step.num_evaluations == 5
    assert step.mode == uncapped.mode
    np.testing.assert_allclose(step(*loose).forces, before.forces, rtol=0, atol=1e-9)


def test_a_list_that_starts_far_too_small_recovers(trained, ethanol, device):
    potential = trained(device)
    step = CapturedStep(potential, System.from_ase(ethanol), mode=insist(device))
    step.search.allocate(step.ordered, capacity=3)
    step.engine.reserve(3)
    assert_close(step(ethanol.positions).forces, exact(potential, ethanol)["forces"])
    assert step.num_recoveries == 1
    step(ethanol.positions)
    assert step.num_recoveries == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_atoms_that_are_not_finite_are_named(trained, device, name, value, request):
    atoms = request.getfixturevalue(name)
    step = CapturedStep(trained(device), System.from_ase(atoms), mode=insist(device), skin=0.5)
    wanted = [step(atoms.positions).forces for _ in range(4)][-1]
    bad = atoms.positions.copy()
    bad[2, 1] = value
    with pytest.raises(NonFiniteError, match=r"evaluation 5: positions, energy or forces of \d+ atoms? .*atom 2$"):
        step(bad)
    # It is over when the positions are good again.
    np.testing.assert_allclose(step(atoms.positions).forces, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_a_bad_frame_at_a_refresh_harms_no_later_one(trained, ethanol, chiral, device, value):
    """A refresh chooses new images and origins, except for the bad system."""
    step = CapturedStep(trained(device), [System.from_ase(a) for a in (ethanol, chiral)], mode=insist(device))
    good = np.concatenate([ethanol.positions, chiral.positions])
    wanted = step(good)
    bad = good + np.repeat([[0.0], [300.0]], [9, 5], axis=0)
    bad[2, 0] = value
    step.num_evaluations = REFRESH_EVERY - 1
    origin = step.buffers.origin.clone()
    with pytest.raises(NonFiniteError, match="evaluation 2000: .* of 1 atoms are not finite, the first is atom 2"):
        step(bad)
    assert torch.equal(step.buffers.origin[0], origin[0])
    moved = (step.buffers.origin[1] - origin[1]).cpu().numpy()
    np.testing.assert_allclose(moved, [300.0] * 3)
    found = step(good)
    assert_close(found.forces, wanted.forces)
    np.testing.assert_allclose(found.energy, wanted.energy, atol=1e-5)


def test_a_bad_cell_at_a_refresh_harms_no_later_frame(trained, crystal, device):
    step = CapturedStep(trained(device), System.from_ase(crystal), mode=insist(device))
    wanted = step(crystal.positions, crystal.cell.array)
    for bad in (np.full((3, 3), np.nan), np.zeros((3, 3))):
        step.num_evaluations = REFRESH_EVERY - 1
        with pytest.raises((NonFiniteError, CapacityError)):
            step(crystal.positions, bad)
        assert_close(step(crystal.positions, crystal.cell.array).forces, wanted.forces)


def test_a_cell_that_is_not_finite_is_refused(trained, crystal, device):
    step = CapturedStep(trained(device), System.from_ase(crystal), mode=insist(device))
    wanted = step(crystal.positions).forces
    for bad in (np.full((3, 3), np.nan), np.zeros((3, 3))):
        with pytest.raises(CapacityError, match="can't be counted: .*(cell must be finite|is zero)"):
            step(crystal.positions, bad)
    np.testing.assert_allclose(step(crystal.positions, crystal.cell.array).forces, wanted, rtol=0, atol=1e-5)


def test_two_atoms_at_the_same_position_are_named(trained, ethanol, device):
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode=insist(device))
    step(ethanol.positions)
    ethanol.positions[4] = ethanol.positions[2]
    with pytest.raises(ValueError, match="atoms must not coincide, got atoms 2 and 4 at the same position"):
        step(ethanol.positions)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["tensornet", "tensornet2", "zbl", "coulomb"])
@pytest.mark.parametrize("size", ["few", "periodic", "many"])
def test_the_distance_at_which_atoms_coincide_is_that_of_evaluate(
    make_kind, trained, device, dtype, kind, size, ethanol
):
    if device == "cuda" and kind == "tensornet":
        potential = trained("cuda", dtype)  # whose network the kernels of one launch serve
    else:
        potential = copy.deepcopy(make_kind(kind, dtype)).to(device)
    atoms = ethanol
    if size == "periodic":
        atoms.set_cell([9, 10, 11])
        atoms.pbc = True
    elif size == "many":  # more than one launch serves
        atoms.set_cell([9, 9, 9])
        atoms = atoms.repeat((8, 1, 1)) if device == "cuda" else atoms.repeat((2, 1, 1))
        atoms.pbc = False
    step = CapturedStep(potential, System.from_ase(atoms), mode=insist(device))
    wanted = step(atoms.positions).energy[0]
    for gap, refused in ((0.0, True), (2e-6, True), (0.98e-4, True), (1.02e-4, False)):
        near = atoms.copy()
        near.positions[4] = near.positions[2] + gap * np.array([0.6, 0.0, 0.8])
        if size == "periodic":
            near.positions[4] += near.cell.array[1]
        for door in (lambda at: step(at.positions), lambda at: evaluate(potential, System.from_ase(at))):
            if refused:
                with pytest.raises(ValueError, match="atoms must not coincide, got atoms 2 and 4 at the same position"):
                    door(near)
            else:
                assert np.isfinite(float(door(near).energy[0]))
    assert step(atoms.positions).energy[0] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("far", [(3e4, -2e4, 1e4), (0, 0, 1e6)])
def test_a_molecule_that_has_left_loses_no_precision(trained, ethanol, device, far):
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode=insist(device))
    wanted = step(ethanol.positions).forces
    found = step(ethanol.positions + far).forces
    assert_close(found, wanted)
    assert step.num_evaluations == 2


def test_atoms_may_leave_their_cell_by_many_cells(trained, crystal, device):
    step = CapturedStep(trained(device), System.from_ase(crystal), mode=insist(device))
    wanted = step(crystal.positions).forces
    images = np.array([[400, -300, 9], [0, 0, -800], [55, 120, 300]])
    assert_close(step(crystal.positions + images @ crystal.cell.array).forces, wanted)


def test_the_internal_order_of_atoms_does_not_change_results(trained, crystal, device, monkeypatch):
    potential, atoms = trained(device), crystal.repeat(2)
    orders = iter(torch.randperm(len(atoms), generator=torch.Generator().manual_seed(k)) for k in range(100))
    monkeypatch.setattr(step_change, "choose_order", lambda batch, *_: next(orders).to(batch.positions.device))
    monkeypatch.setattr(step_module, "REFRESH_EVERY", 3)
    step = CapturedStep(potential, System.from_ase(atoms), mode=insist(device), energies=True, stress=True)
    seen = set()
    for positions, cell in frames(atoms, 8):
        found, wanted = step(positions, cell), exact(potential, atoms, positions, cell, stress=True)
        assert_close(found.forces, wanted["forces"])
        assert np.abs(found.energies - wanted["energies"]).max() < 1e-5
        seen.add(tuple(step.buffers.order.tolist()))
    assert len(seen) == 3
    bad = atoms.positions.copy()
    bad[5, 0] = np.nan
    with pytest.raises(NonFiniteError, match="atom 5$"):
        step(bad)


def test_a_skin_saves_searches_and_changes_no_number(trained, ethanol, device):
    potential = trained(device)
    step = CapturedStep(potential, System.from_ase(ethanol), mode=insist(device), skin=1.0)
    rng = np.random.default_rng(3)
    for _ in range(20):
        ethanol.positions += rng.normal(scale=0.01, size=(9, 3))
        assert_close(step(ethanol.positions).forces, exact(potential, ethanol)["forces"])
    assert 1 <= step.report().searches <= 3
    ethanol.positions[5] += 0.8
    searches = step.report().searches
    assert_close(step(ethanol.positions).forces, exact(potential, ethanol)["forces"])
    assert step.report().searches == searches + 1


# -- several steps, several structures -----------------------------------------------------------------------------


def test_interleaved_steps_do_not_disturb_each_other(trained, ethanol, crystal, device):
    cases = [(trained(device), ethanol), (trained(device, seed=7), crystal), (trained(device, seed=7), ethanol)]
    steps = [CapturedStep(potential, System.from_ase(atoms), mode=insist(device)) for potential, atoms in cases]
    for k in range(6):
        for step, (potential, atoms) in zip(steps, cases, strict=True):
            positions = atoms.positions + 0.02 * np.sin(k + np.arange(3 * len(atoms))).reshape(-1, 3)
            assert_close(step(positions).forces, exact(potential, atoms, positions)["forces"])
    assert not np.allclose(steps[0](ethanol.positions).forces, steps[2](ethanol.positions).forces, atol=1e-2)


def test_equal_input_gives_equal_bits(trained, crystal, device):
    potential, atoms = trained(device), crystal.repeat(3)
    steps = [
        CapturedStep(potential, System.from_ase(atoms), mode=insist(device), stress=True, energies=True)
        for _ in range(2)
    ]
    first = steps[0](atoms.positions)
    for step in steps * 10:
        again = step(atoms.positions)
        for name in ("energy", "energies", "forces", "stress"):
            np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
        step(atoms.positions + 0.01)  # something else in between


def test_another_structure_can_be_assigned(trained, ethanol, chiral, cation, device):
    """Assigns other elements, charges and system sizes to the same buffers and graphs."""
    potential = trained(device)
    first, second = ([ethanol, cation], [cation, ethanol])
    step = CapturedStep(potential, [System.from_ase(a) for a in first], mode=insist(device), skin=0.3)
    for structures in (first, second, first):
        step.assign([System.from_ase(atoms) for atoms in structures])
        found = step(np.concatenate([atoms.positions for atoms in structures]))
        wanted = [exact(potential, atoms) for atoms in structures]
        assert_close(found.forces, np.concatenate([w["forces"] for w in wanted]))
        np.testing.assert_allclose(found.energy, np.concatenate([w["energy"] for w in wanted]), atol=1e-4)
    swapped = cation.copy()
    swapped.info["charge"] = -2
    step.assign([System.from_ase(ethanol), System.from_ase(swapped)])
    found = step(np.concatenate([ethanol.positions, swapped.positions]))
    assert_close(found.forces[9:], exact(potential, swapped)["forces"])
    assert not np.allclose(found.forces[9:], exact(potential, cation)["forces"], atol=1e-5)


def test_a_structure_that_does_not_fit_is_not_assigned(trained, ethanol, cation, chiral, device):
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode=insist(device))
    wanted = step(ethanol.positions).forces
    with pytest.raises(ValueError, match="assign needs 9 atoms in 1 systems, got 5 in 1"):
        step.assign(System.from_ase(cation))
    with pytest.raises(ValueError, match="assign needs 9 atoms in 1 systems, got 9 in 2"):
        step.assign(Batch.from_systems([System.from_ase(ethanol[:4]), System.from_ase(ethanol[4:])]))
    heavy, periodic = ethanol.copy(), ethanol.copy()
    heavy.numbers[1] = 79
    with pytest.raises(ValueError, match="this potential knows atomic numbers up to 35, got 79 for atom 1"):
        step.assign(System.from_ase(heavy))
    periodic.set_cell(np.eye(3) * 9)
    periodic.pbc = True
    with pytest.raises(ValueError, match="allocated without periodic directions can't take a periodic"):
        step.assign(System.from_ase(periodic))
    # The step still has what it had.
    np.testing.assert_allclose(step(ethanol.positions).forces, wanted, rtol=0, atol=1e-9)


def test_a_step_of_no_atoms(trained, device):
    step = CapturedStep(trained(device), System.create(np.zeros((0, 3)), []), energies=True)
    result = step(np.zeros((0, 3)))
    assert result.energy.tolist() == [0.0]
    assert result.forces.shape == (0, 3)
    assert result.energies.shape == (0,)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(mode="fast"), "mode must be one of auto, graph, eager, got 'fast'"),
        (dict(precision="float16"), "precision must be one of float32, float64, got 'float16'"),
        (dict(precision="float64"), "precision 'float64' needs a potential in torch.float64, got torch.float32"),
        (dict(audit_every=-1), "audit_every must be >= 0 evaluations, got -1"),
        (dict(skin=-0.5), "skin must be >= 0 Å and finite, got -0.5"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(trained, ethanol, device, arguments, message):
    with pytest.raises(ValueError, match=message):
        CapturedStep(trained(device), System.from_ase(ethanol), **arguments)


def test_a_potential_in_float64_is_not_silently_rounded(trained, ethanol, device):
    message = "precision 'float32' needs a potential in torch.float32, got torch.float64"
    with pytest.raises(ValueError, match=message):
        CapturedStep(trained(device, torch.float64), System.from_ase(ethanol), precision="float32")


def test_an_unknown_element_is_refused(trained, ethanol, device):
    ethanol.numbers[3] = 79
    with pytest.raises(ValueError, match="this potential knows atomic numbers up to 35, got 79 for atom 3"):
        CapturedStep(trained(device), System.from_ase(ethanol))


WRONG = [
    (dict(positions=np.zeros((8, 3))), ValueError, r"positions must have shape \[9, 3\], got \[8, 3\]"),
    (dict(positions=np.zeros(27)), ValueError, r"positions must have shape \[9, 3\], got \[27\]"),
    (dict(positions=torch.zeros(9, 4)), ValueError, r"positions must have shape \[9, 3\], got \[9, 4\]"),
    (dict(positions=np.full((9, 3), "x")), TypeError, "positions must be numbers, got an array of <U1"),
    (dict(positions=np.zeros((9, 3), bool)), TypeError, "positions must be numbers, got an array of bool"),
    (dict(positions=np.zeros((9, 3), complex)), TypeError, "positions must be numbers, got an array of complex128"),
    (dict(positions=torch.zeros(9, 3, dtype=torch.bool)), TypeError, "positions must be numbers, got .* torch.bool"),
    (dict(positions=torch.zeros(9, 3, dtype=torch.complex64)), TypeError, "positions must be numbers, got .*complex64"),
    (dict(cell=np.zeros(3)), ValueError, r"cell must have shape \[1, 3, 3\], got \[3\]"),
    (dict(cell=np.zeros((2, 3, 3))), ValueError, r"cell must have shape \[1, 3, 3\], got \[2, 3, 3\]"),
    (dict(cell="cubic"), TypeError, "cell must be numbers, got an array of <U5"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG, ids=[message for _, _, message in WRONG])
def test_positions_and_cells_that_do_not_fit_are_refused(trained, ethanol, device, change, error, message):
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode=insist(device))
    wanted = step(ethanol.positions, np.zeros((3, 3))).forces
    with pytest.raises(error, match=message):
        step(**(dict(positions=ethanol.positions) | change))
    assert step.num_evaluations == 1
    np.testing.assert_array_equal(step(ethanol.positions).forces, wanted)


def test_one_cell_is_not_enough_for_two_systems(trained, ethanol, device):
    step = CapturedStep(trained(device), [System.from_ase(ethanol)] * 2)
    with pytest.raises(ValueError, match=r"cell must have shape \[2, 3, 3\], got \[3, 3\]"):
        step(np.zeros((18, 3)), np.eye(3))


@pytest.mark.parametrize("pbc", [True, (True, False, False), False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_structure_without_atoms_has_the_results_of_evaluate_in_every_step(trained, device, dtype, pbc):
    potential = copy.deepcopy(trained(device, dtype))
    potential.shift.fill_(3.0)
    cells = 5 * np.eye(3), np.diag([5.0, 0, 0]) if pbc is not True else 6 * np.eye(3)
    step = None
    for cell in cells:
        system = System.create(np.zeros((0, 3)), np.zeros(0, dtype=int), cell, pbc)
        wanted = evaluate(potential, system, stress=True).stress.cpu().numpy()
        assert (wanted == 0).all() if abs(np.linalg.det(cell)) > 0 else np.isnan(wanted).all()
        batch = Batch.of(system).to(device)
        held = BatchPool(potential, stress=True)
        held.hold(batch)
        step = step or CapturedStep(potential, system, mode=insist(device), stress=True, energies=True)
        found = [
            step(system.positions, system.cell),
            step(system.positions, system.cell),
            DividedStep(potential, system, devices=[device] * 2, stress=True)(system.positions),
            StepPool(potential, stress=True)(system),
            DividedPool(potential, [device] * 2, stress=True)(system),
            held(batch.positions, batch.cell),
        ]
        for result in found:
            assert [float(energy) for energy in result.energy] == [0.0]
            assert result.forces.shape == (0, 3)
            np.testing.assert_array_equal(torch.as_tensor(result.stress).cpu().numpy(), wanted)


@pytest.mark.parametrize("at", ["drop", "renew"])
def test_a_step_whose_settling_is_interrupted_settles_at_the_next_evaluation(trained, ethanol, device, monkeypatch, at):
    """After an evaluation that one launch gave up, or that ran out of memory, nothing else says so."""
    step = CapturedStep(trained(device), System.from_ase(ethanol), mode=insist(device))
    wanted = step(ethanol.positions).forces
    holder = step.policy if at == "drop" else step.search
    with monkeypatch.context() as patch:
        patch.setattr(holder, at, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            step_change.settle(step, "host")
    assert step.unsettled
    assert_close(step(ethanol.positions).forces, wanted)
    assert not step.unsettled
