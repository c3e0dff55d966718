"""Ensembles in OpenMM: mean forces, spreads, and a limit that ends a run and keeps the frame."""

import copy
import dataclasses
import importlib.util

import ase.io
import numpy as np
import pytest
import torch

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from boxes import assert_same, context_of, empty_system, expected, found, topology_of  # noqa: E402

from torchmdx import Calculator, Ensemble, save  # noqa: E402
from torchmdx.openmm import add_potential, create_mixed_system  # noqa: E402
from torchmdx.openmm.native import native  # noqa: E402
from torchmdx.openmm.transport_native import GraphSession  # noqa: E402
from torchmdx.step.buffer_storage import UNCERTAIN  # noqa: E402
from torchmdx.step.results import SpreadError  # noqa: E402
from torchmdx.structures.units import NANOMETER  # noqa: E402

EXACT = dict(device="cpu", precision="float64")
REASON = native.unavailable(cuda=False)
NO_TORCH = importlib.util.find_spec("openmmtorch") is None
TRANSPORTS = [
    "python",
    pytest.param("native", marks=pytest.mark.skipif(REASON is not None, reason=f"no plugin: {REASON}")),
    pytest.param("torch", marks=pytest.mark.skipif(NO_TORCH, reason="needs openmm-torch")),
]


@pytest.fixture
def members(make_potential):
    return [make_potential(seed=seed, num_channels=8, num_layers=1, cutoff=3.0) for seed in (1, 2, 3)]


def system_of(potential, structure, **options):
    system = empty_system(structure)
    return system, add_potential(system, topology_of(structure), potential, **{**EXACT, **options})


def oracle(members, structure):
    """(mean energy, mean forces, spread of energy, spread of forces), by NumPy."""
    each = [expected(member, structure) for member in members]
    energies, forces = (np.stack(values) for values in zip(*each, strict=True))
    spread = np.sqrt(((forces - forces.mean(0)) ** 2).sum((0, 2)) / (len(members) - 1))
    return energies.mean(), forces.mean(0), energies.std(ddof=1), spread


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_mean_and_spread(members, transport, name, request):
    structure = request.getfixturevalue(name)
    if name == "crystal":
        structure.set_cell([[3.2, 0, 0], [0.5, 3.1, 0], [-0.6, 0.4, 3.3]], scale_atoms=True)
    system, force = system_of(members, structure, transport=transport)
    assert force.spread is None
    context = context_of(system, structure)
    energy, forces, energy_spread, force_spread = oracle(members, structure)
    assert_same(found(context), (energy, forces))
    assert force.spread.energy == pytest.approx(energy_spread, rel=1e-8)
    np.testing.assert_allclose(force.spread.forces, force_spread, atol=1e-8)
    assert force.report().members == 3
    single = system_of(members[0], structure, transport=transport)[1]
    assert single.spread is None


def integrate(context, seen):
    """Step by step; the positions after each are added to `seen`. A step first evaluates where the last one ended."""
    for _ in range(300):
        context.getIntegrator().step(1)
        seen.append(context.getState(positions=True).getPositions(asNumpy=True)._value * NANOMETER)


@pytest.mark.nightly_for("native", "python")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_limit_ends_a_run_and_keeps_the_frame(members, ethanol, tmp_path, transport):
    system, _ = system_of(Ensemble(members), ethanol, transport=transport)
    probe = system_of(Ensemble(members), ethanol, transport="python")[1]
    probe.evaluator.evaluate(ethanol.positions, None)
    limit, file = 1.05 * probe.spread.forces.max(), tmp_path / "far.xyz"
    system, _ = system_of(Ensemble(members), ethanol, transport=transport, max_force_spread=limit, spread_file=file)
    context = context_of(system, ethanol)
    context.setVelocities(-1.0 * (ethanol.positions - ethanol.positions.mean(0)))
    said = (
        rf"the force spread of the ensemble must be at most {limit:g} eV/Å, got [\d.]+ eV/Å at atom \d; its frame was"
    )
    seen = [ethanol.positions]
    with pytest.raises(openmm.OpenMMException, match=said):
        integrate(context, seen)
    assert len(seen) > 3  # it did run
    (kept,) = ase.io.read(file, ":")
    energy, forces, energy_spread, force_spread = oracle(members, kept)
    assert force_spread.max() > limit
    np.testing.assert_allclose(kept.arrays["forces_spread"], force_spread, atol=1e-5)
    np.testing.assert_allclose(kept.get_forces(), forces, atol=1e-5)
    assert kept.get_potential_energy() == pytest.approx(energy, abs=1e-5)
    assert kept.info["energy_spread"] == pytest.approx(energy_spread, abs=1e-5)
    assert kept.numbers.tolist() == ethanol.numbers.tolist()
    np.testing.assert_allclose(kept.positions, seen[-1], atol=1e-7)
    structure = ethanol.copy()
    structure.positions = seen[-2]
    assert oracle(members, structure)[3].max() <= limit
    # The force can be used again, from somewhere else.
    context.setPositions(ethanol.positions / NANOMETER)
    assert_same(found(context), oracle(members, ethanol)[:2])


def test_the_particle_is_named_where_the_potential_sees_some(members, ethanol, tmp_path):
    chosen = [8, 0, 3]
    system = empty_system(ethanol)
    limits = dict(max_force_spread=1e-9, spread_file=tmp_path / "x.xyz")
    add_potential(system, topology_of(ethanol), members, chosen, transport="python", **EXACT, **limits)
    spread = oracle(members, ethanol[chosen])[3]
    worst = spread.argmax()
    with pytest.raises(
        openmm.OpenMMException, match=f"at atom {worst} of the potential, particle {chosen[worst]}; its frame"
    ):
        found(context_of(system, ethanol))
    (kept,) = ase.io.read(tmp_path / "x.xyz", ":")
    assert kept.numbers.tolist() == ethanol.numbers[chosen].tolist()


def test_a_graph_session_keeps_the_frame_that_its_flag_tells_of(members, ethanol, tmp_path):
    """What the C++ force asks for when it sees a flag: the evaluation once more, from the step's own inputs."""
    limits = dict(max_force_spread=1e-9, spread_file=tmp_path / "x.xyz")
    evaluator = system_of(members, ethanol, transport="python", **limits)[1].evaluator
    session = GraphSession(evaluator, 0)
    session.step = step = evaluator.make_step(ethanol.positions, None)
    step.buffers.inputs["positions"].copy_(torch.from_numpy(ethanol.positions + 1.0))
    step._launch("device")
    assert step.buffers.host_outputs["flags"][UNCERTAIN] == len(ethanol)
    with pytest.raises(SpreadError, match="its frame was appended to"):
        session._renewed(step)
    np.testing.assert_allclose(ase.io.read(tmp_path / "x.xyz").positions, ethanol.positions + 1.0, atol=1e-7)


@pytest.mark.parametrize("way", ["file", "list"])
def test_a_saved_system_finds_its_members_again(members, ethanol, tmp_path, way):
    paths = [tmp_path / f"{k}.safetensors" for k in range(3)]
    for member, path in zip(members, paths, strict=True):
        save(member, path)
    save(Ensemble(members), tmp_path / "all.safetensors")
    given = tmp_path / "all.safetensors" if way == "file" else paths
    limits = dict(max_force_spread=1e3, spread_file=tmp_path / "x.xyz")
    system, force = system_of(given, ethanol, transport="python", **limits)
    text = openmm.XmlSerializer.serialize(system)
    again = openmm.XmlSerializer.deserialize(text)
    assert_same(found(context_of(again, ethanol)), oracle(members, ethanol)[:2])
    settings = force.evaluator.settings
    assert type(settings).from_text(settings.to_text()) == settings
    save(members[0], paths[2])
    save(Ensemble(members[:2]), tmp_path / "all.safetensors")
    changed = openmm.XmlSerializer.deserialize(text)
    named = "all" if way == "file" else "2"
    with pytest.raises(openmm.OpenMMException, match=f"{named}.safetensors' has changed since the force was saved"):
        found(context_of(changed, ethanol))


def test_a_mixed_system_takes_an_ensemble_and_its_limit(members, ethanol, tmp_path):
    system = empty_system(ethanol)
    limits = dict(max_force_spread=1e-9, spread_file=tmp_path / "x.xyz")
    mixed = create_mixed_system(system, topology_of(ethanol), range(9), members, transport="python", **EXACT, **limits)
    with pytest.raises(openmm.OpenMMException, match="the force spread of the ensemble must be at most 1e-09"):
        found(context_of(mixed, ethanol))
    assert (tmp_path / "x.xyz").exists()


def test_bad_limits_are_refused(members, ethanol, tmp_path):
    with pytest.raises(ValueError, match="max_force_spread needs an ensemble, got 0.5 eV/Å with a single potential"):
        system_of(members[0], ethanol, max_force_spread=0.5)
    with pytest.raises(ValueError, match="max_force_spread must be > 0 eV/Å and finite, got -1"):
        system_of(members, ethanol, max_force_spread=-1)
    with pytest.raises(ValueError, match="spread_file needs max_force_spread"):
        system_of(members, ethanol, spread_file=tmp_path / "x.xyz")


# -- OpenMM's CUDA platform ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("transport", ["native", "python"])
def test_the_cuda_platform_stops_at_the_limit(make_potential, ethanol, tmp_path, transport):
    if "CUDA" not in [openmm.Platform.getPlatform(i).getName() for i in range(openmm.Platform.getNumPlatforms())]:
        pytest.skip("needs OpenMM's CUDA platform")
    members = [make_potential(torch.float32, seed, num_channels=16, cutoff=4.0) for seed in (1, 2, 3, 4)]
    ethanol.calc = probe = Calculator([copy.deepcopy(member) for member in members], device="cuda")
    ethanol.get_forces()
    limit, file = 1.05 * probe.results["forces_spread"].max(), tmp_path / "far.xyz"
    options = dict(device="cuda", precision="float32", transport=transport, max_force_spread=limit, spread_file=file)
    system, force = system_of(members, ethanol, **options)
    assert force.transport == transport
    platform = openmm.Platform.getPlatformByName("CUDA")
    context = openmm.Context(system, openmm.VerletIntegrator(2e-4), platform, {"Precision": "mixed"})
    context.setPositions(ethanol.positions / NANOMETER)
    context.getState(forces=True)
    np.testing.assert_allclose(force.spread.forces, probe.results["forces_spread"], atol=1e-4)
    assert force.spread.energy == pytest.approx(probe.results["energy_spread"], rel=1e-3)
    context.setVelocities(-1.0 * (ethanol.positions - ethanol.positions.mean(0)))
    with pytest.raises(openmm.OpenMMException, match="the force spread of the ensemble must be at most"):
        integrate(context, [])
    (kept,) = ase.io.read(file, ":")
    probe.calculate(kept)
    assert probe.results["forces_spread"].max() == pytest.approx(kept.arrays["forces_spread"].max(), rel=1e-3)
    assert kept.arrays["forces_spread"].max() > limit
    context.setPositions(ethanol.positions / NANOMETER)
    context.getState(forces=True)


class Movable:
    """Stands for a potential on a GPU."""

    def __init__(self, index):
        self.device = torch.device("cuda", index)

    def __deepcopy__(self, memo):
        return Movable(self.device.index)

    def to(self, device):
        return Movable(torch.device(device).index)


@pytest.mark.parametrize(("device", "follows"), [("cuda", True), ("cuda:0", False)])
def test_a_potential_follows_the_gpu_of_the_context_unless_it_has_one(potential, ethanol, device, follows):
    evaluator = system_of(potential, ethanol)[1].evaluator
    assert evaluator.on_gpu(1) is evaluator  # on the CPU
    evaluator.settings, evaluator.potential = dataclasses.replace(evaluator.settings), Movable(0)
    object.__setattr__(evaluator.settings, "device", device)
    assert evaluator.on_gpu(None) is evaluator.on_gpu(0) is evaluator
    other = evaluator.on_gpu(1)
    assert (other is not evaluator) is follows
    assert other is evaluator.on_gpu(1)
    if follows:
        assert other.potential.device.index == 1
        assert (other.settings.device, evaluator.settings.device) == ("cuda:1", "cuda")
        assert other.sessions is evaluator.sessions
