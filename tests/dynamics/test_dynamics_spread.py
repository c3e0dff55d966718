"""Dynamics with an ensemble: spreads of snapshots and logs, and runs that a limit on the force spread ends."""

import ase.io
import numpy as np
import pytest
import torch

import torchmdx
from torchmdx import Dynamics, Ensemble, System
from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.restraints import Distance
from torchmdx.dynamics.run.files import RunFiles
from torchmdx.dynamics.run.recording import Recording
from torchmdx.step.results import SpreadError

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
TINY = dict(num_layers=0, num_channels=4, num_radial=4)
MORE = 40  # steps


@pytest.fixture(params=["cpu", GPU])
def ensemble(request, make_potential):
    members = [make_potential(dtype=torch.float32, seed=seed, **TINY) for seed in (1, 2, 3)]
    return Ensemble(members).to(request.param)


@pytest.fixture
def make(ensemble, ethanol, cation):
    systems = [System.from_ase(ethanol), System.from_ase(cation)]
    options = dict(integrator="verlet", timestep=0.5, temperature=[300.0, 2000.0], seed=3, steps_per_replay=4)

    def dynamics(**given):
        return Dynamics(ensemble, systems, **{**options, **given})

    return dynamics


@pytest.fixture
def stopped(make):
    """(limit, step that exceeds it, structure that does so) of a run whose earlier steps are within the limit."""
    free = make()
    spreads = np.array([free.snapshot().largest_force_spread])
    spreads = np.concatenate([spreads, [found.largest_force_spread for found in free.snapshots(MORE, every=1)]])
    record = np.maximum.accumulate(spreads.max(1))
    risen = np.flatnonzero(np.diff(record) > 1e-3 * record[:-1]) + 1
    step = int(risen[len(risen) // 2])
    assert step > 3
    return float((record[step - 1] + record[step]) / 2), step, int(spreads[step].argmax())


def test_snapshots_have_the_spread(make, ensemble):
    dynamics = make()
    for found in (dynamics.snapshot(), dynamics.run(7)):
        moved = torch.as_tensor(found.positions)
        batch = torchmdx.Batch.from_systems(
            [
                System.create(moved[part], system.atomic_numbers, charge=system.charge)
                for part, system in zip((slice(0, 9), slice(9, None)), dynamics.batch.systems(), strict=True)
            ]
        )
        expected = torchmdx.CapturedStep(ensemble, batch, mode="eager")(batch.positions.numpy())
        np.testing.assert_allclose(found.energy_spread, expected.energy_spread, rtol=1e-4)
        largest = [expected.force_spread[:9].max(), expected.force_spread[9:].max()]
        np.testing.assert_allclose(found.largest_force_spread, largest, rtol=1e-4)


def test_a_single_potential_has_none(make_potential, ethanol):
    found = Dynamics(make_potential(**TINY), System.from_ase(ethanol)).run(2)
    assert np.isnan([found.energy_spread, found.largest_force_spread]).all()


def test_a_restored_state_has_the_spread(make, tmp_path):
    kept = make().run(5)
    kept.save(tmp_path / "state.npz")
    again = make()
    again.restore(tmp_path / "state.npz")
    for name in ("energy_spread", "largest_force_spread"):
        np.testing.assert_allclose(getattr(again.snapshot(), name), getattr(kept, name), rtol=1e-6)


def test_a_limit_ends_the_run_at_the_step_before(make, stopped):
    limit, step, structure = stopped
    dynamics, expected = make(max_force_spread=limit), make().run(step - 1)
    for _ in range(2):
        with pytest.raises(SpreadError, match=f"^step {step}: the force spread .* at most {limit:g} eV/Å") as caught:
            dynamics.run(MORE)
        error, found = caught.value, dynamics.snapshot()
        assert found.step == step - 1
        np.testing.assert_array_equal(found.positions, expected.positions)
        np.testing.assert_array_equal(found.largest_force_spread, expected.largest_force_spread)
    start = 9 * structure
    assert (error.step, error.structure, error.most) == (step, structure, pytest.approx(limit))
    assert str(error).endswith(f" at atom {error.atom - start} of structure {structure}")
    assert error.frame.force_spread.argmax() == error.atom - start
    reached = make().run(step)
    own = reached.particles.system == structure
    np.testing.assert_allclose(error.frame.positions, reached.positions[own], atol=1e-6)
    np.testing.assert_allclose(error.frame.forces, reached.forces[own], atol=1e-4)
    assert error.frame.energy == pytest.approx(reached.energy[structure], abs=1e-4)


def test_a_limit_that_the_first_evaluation_exceeds(make):
    with pytest.raises(SpreadError, match="^step 0: .* of structure [01]$") as caught:
        make(max_force_spread=1e-9)
    assert caught.value.step == 0


def test_frames_have_the_forces_of_the_ensemble_alone(make, ensemble, stopped):
    limit, _, _ = stopped
    with pytest.raises(SpreadError) as caught:
        make(max_force_spread=limit, restraints=[Distance((0, 1), 5.0, 0.5)]).run(10 * MORE)
    frame = caught.value.frame
    system = System.create(frame.positions, frame.numbers, charge=frame.charge)
    expected = torchmdx.CapturedStep(ensemble, system, mode="eager")(frame.positions)
    np.testing.assert_allclose(frame.forces, expected.forces, atol=1e-4)


def recorded(dynamics, prefix, num_steps, **options):
    with Recording.begin(dynamics, prefix, save_every=1, log_every=3, **options) as recording:
        recording.run(num_steps)


def rows(path):
    return [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()]


def test_a_recorded_run_keeps_the_frame_and_continues(make, stopped, tmp_path):
    limit, step, structure = stopped
    whole, files = RunFiles(str(tmp_path / "whole"), 2), RunFiles(str(tmp_path / "run"), 2)
    recorded(make(), whole.prefix, MORE)
    name = str(files.uncertain[structure])
    with pytest.raises(SpreadError) as caught:
        recorded(make(max_force_spread=limit), files.prefix, MORE)
    said = str(caught.value)
    assert said.startswith(f"step {step}: ")
    assert f" of structure {structure}; its frame was appended to {name!r}\nthe last valid state saved is of" in said
    frames = ase.io.read(name, ":")
    assert len(frames) == 1
    np.testing.assert_allclose(frames[0].positions, caught.value.frame.positions, atol=1e-7)
    assert frames[0].arrays["forces_spread"].max() > limit
    assert [path.exists() for path in files.uncertain] == [structure == 0, structure == 1]
    assert read_log(files.logs[0])["step"].tolist() == list(range(0, step, 3))
    with Recording.resume(make(), files.prefix, save_every=1, log_every=3) as recording:
        assert recording.saved_step == step - 1
        recording.run(MORE - recording.saved_step)
    for one, two in zip([*files.trajectories, *files.logs], [*whole.trajectories, *whole.logs], strict=True):
        same = one.read_bytes() == two.read_bytes() if one.suffix == ".dcd" else rows(one) == rows(two)
        assert same, one
    log = read_log(whole.logs[structure])
    for row, found in enumerate(make().snapshots(MORE // 3 * 3, every=3), 1):
        assert log["force_spread_eV_per_A"][row] == pytest.approx(found.largest_force_spread[structure], abs=1e-6)
        assert log["energy_spread_eV"][row] == pytest.approx(found.energy_spread[structure], abs=1e-6)
    with pytest.raises(FileExistsError, match=files.uncertain[structure].name):
        recorded(make(), files.prefix, 1)
    recorded(make(), files.prefix, 1, overwrite=True)
    assert not files.uncertain[structure].exists()


def test_a_frame_that_cannot_be_written_does_not_hide_why(make, stopped, tmp_path):
    limit, step, structure = stopped
    files = RunFiles(str(tmp_path / "run"), 2)
    with Recording.begin(make(max_force_spread=limit), files.prefix) as recording:
        files.uncertain[structure].mkdir()
        with pytest.raises(SpreadError, match=f"^step {step}: .*; its frame could not be appended to "):
            recording.run(MORE)


@pytest.mark.nightly
def test_processes_say_the_same(make, stopped, ensemble, quick_workers):
    limit, step, structure = stopped
    if next(ensemble.parameters()).device.type == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    dynamics = make(max_force_spread=limit, devices=2)
    try:
        with pytest.raises(SpreadError, match=f"^step {step}: .* of structure {structure}$") as caught:
            dynamics.run(MORE)
    finally:
        dynamics.close()
    with pytest.raises(SpreadError) as expected:
        make(max_force_spread=limit).run(MORE)
    assert caught.value.atom == expected.value.atom
    np.testing.assert_allclose(caught.value.frame.positions, expected.value.frame.positions, atol=1e-6)
    with pytest.raises(SpreadError, match="^step 0: .* of structure [01]$") as caught:
        make(max_force_spread=1e-9, devices=2)
    assert caught.value.frame is not None
