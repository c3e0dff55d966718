"""Dynamics with the uncertainty of a single potential: snapshots, logs, and runs that a limit ends."""

import ase.io
import numpy as np
import pytest
import torch
from md_runs import md
from uncertain import uncertain

import torchmdx
from torchmdx import Dynamics, System, evaluate
from torchmdx.commands import cli
from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.step.results import UncertaintyError

TINY = dict(num_layers=0, num_channels=4, num_radial=4)
MORE = 30  # steps


@pytest.fixture
def potential(make_potential):
    return uncertain(make_potential(dtype=torch.float64, seed=1, **TINY))


@pytest.fixture
def make(potential, ethanol, cation):
    systems = [System.from_ase(ethanol), System.from_ase(cation)]
    options = dict(integrator="verlet", timestep=0.5, temperature=[300.0, 2000.0], seed=3, uncertainty=True)

    def dynamics(**given):
        return Dynamics(potential, systems, **{**options, **given})

    return dynamics


def of_structures(potential, found: Snapshot, dynamics):
    """(σ(E), largest σ_i) of each structure, by the exact model at the positions of a snapshot."""
    parts = np.split(found.positions, [9])
    systems = [
        System.create(part, system.atomic_numbers, charge=system.charge)
        for part, system in zip(parts, dynamics.batch.systems(), strict=True)
    ]
    exact = [evaluate(potential, system, forces=False) for system in systems]
    return np.array([[float(one.energy_uncertainty), float(one.energies_uncertainty.max())] for one in exact]).T


def test_snapshots_have_it(make, potential):
    dynamics = make()
    for found in (dynamics.snapshot(), dynamics.run(5)):
        energy, largest = of_structures(potential, found, dynamics)
        np.testing.assert_allclose(found.energy_uncertainty, energy, rtol=1e-5)
        np.testing.assert_allclose(found.largest_uncertainty, largest, rtol=1e-5)
        assert np.isnan([found.energy_spread, found.largest_force_spread]).all()
    assert np.isnan(make(uncertainty=False).run(1).energy_uncertainty).all()


def test_a_limit_ends_the_run_at_its_step_and_it_goes_on_with_another(make):
    free = make()
    values = np.array([found.largest_uncertainty for found in free.snapshots(MORE, every=1)])
    record = np.maximum.accumulate(values.max(1))
    step = int(np.flatnonzero(np.diff(record) > 1e-4 * record[:-1])[3]) + 1
    limit, structure = (record[step - 1] + record[step]) / 2, int(values[step].argmax())
    limited = make(uncertainty=False, max_uncertainty=limit)
    text = (
        f"^step {step + 1}: the uncertainty of the energy of an atom must be at most {limit:g} eV, got .* eV at atom "
    )
    with pytest.raises(UncertaintyError, match=text) as caught:
        limited.run(MORE)
    error = caught.value
    assert (error.step, error.structure) == (step + 1, structure)
    assert error.frame.energies_uncertainty.max() == pytest.approx(values[step].max(), rel=1e-6)
    assert limited.num_steps == step
    state = limited.snapshot()
    again = make(max_uncertainty=10 * limit)
    again.restore(state)
    np.testing.assert_array_equal(again.run(MORE - step).positions, free.snapshot().positions)


@pytest.mark.nightly
def test_several_processes_have_it(make, quick_workers):
    expected, shared = make().run(4), make(devices=2)
    try:
        found = shared.run(4)
    finally:
        shared.close()
    np.testing.assert_allclose(found.energy_uncertainty, expected.energy_uncertainty, rtol=1e-9)
    np.testing.assert_allclose(found.largest_uncertainty, expected.largest_uncertainty, rtol=1e-9)


@pytest.mark.parametrize("engine", ["torchmdx", "openmm"])
def test_the_command_logs_it_and_keeps_the_frame(engine, potential, ethanol, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ase.io.write("ethanol.xyz", ethanol)
    torchmdx.save(potential, "model.safetensors")
    own = ["--seed", "5", "--log-every", "1", "--save-every", "5", "--temperature", "900", "--engine", engine]

    def run(prefix, steps, *options):
        if engine == "openmm":
            return md("ethanol.xyz", "model.safetensors", prefix, "--steps", steps, *options, *own)
        given = ["--model", "model.safetensors", "-o", prefix, "--device", "cpu", "--precision", "float64"]
        return cli.main(["md", "ethanol.xyz", *given, "--steps", str(steps), *map(str, options), *own])

    assert run("free", 20, "--uncertainty") == 0
    log = read_log(tmp_path / "free.log")
    values = log["atom_uncertainty_eV"]
    assert (log["energy_uncertainty_eV"] > 0).all()
    limit = round(float(np.sort(values)[-3]), 6)
    assert run("run", 20, "--max-uncertainty", limit) == 2
    said = capsys.readouterr().err
    assert f"the uncertainty of the energy of an atom must be at most {limit:g} eV" in said
    assert "its frame was appended to 'run.uncertain.xyz'" in said
    frame = ase.io.read("run.uncertain.xyz")
    assert frame.arrays["energies_uncertainty"].max() > limit
    assert run("bad", 2, "--max-uncertainty", -1) == 2
    assert "--max-uncertainty must be finite and > 0 eV, got -1" in capsys.readouterr().err
