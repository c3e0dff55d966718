"""A whole step in one launch, emulated on the CPU: what prepare, search and finish would have written."""

import copy

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from emulated import Emulator

from torchmdx import Potential, System, TensorNetConfig
from torchmdx.dynamics.integrators import Bussi
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.step.buffer_storage import FAR, FIRST_BAD, NEEDED, NOT_FINITE, OVERFLOW
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.whole_step import launch_step, launch_whole
from torchmdx.structures.system import Batch

pytest.importorskip("triton")
from torchmdx.engines.gpu.one_launch import OneLaunch
from torchmdx.engines.plan.clusters import AtomClusters, ClusterNetwork

SMALL = dict(num_layers=0, num_channels=32, num_radial=8)
NETWORK = ClusterNetwork.of(TensorNetConfig(**SMALL))
ETHANOL = AtomClusters(3, 3, 2, 2, True, NETWORK)


def potential_of(**settings):
    torch.manual_seed(3)
    made = Potential(TensorNetConfig(cutoff=4.0, **settings)).requires_grad_(False)
    made.scale.fill_(2.0)
    return made


@pytest.fixture(scope="module")
def usual():
    """The usual network, whose steps take seconds on the emulator."""
    return potential_of()


@pytest.fixture(scope="module")
def potential():
    """A smaller network, for what does not depend on its size."""
    return potential_of(**SMALL)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    """The kernel of one step of the smaller network."""
    return Emulator(tmp_path_factory.mktemp("small"), **NETWORK.constants)


@pytest.fixture(scope="module")
def mover(tmp_path_factory):
    """The kernel for steps of dynamics of the smaller network."""
    return Emulator(tmp_path_factory.mktemp("mover"), STEPS_INSIDE=1, **NETWORK.constants)


@pytest.fixture(scope="module")
def usual_mover(tmp_path_factory):
    """The kernel for steps of dynamics of the usual network."""
    return Emulator(tmp_path_factory.mktemp("usual"), STEPS_INSIDE=1)


class Case:
    """Buffers, search and engine of a step of these atoms, with the kernel on the emulator."""

    def __init__(self, emulator, potential, structures, plan, *, energies=False, capacity=None, moving=None):
        self.batch = Batch.of([System.from_ase(atoms) for atoms in structures])
        self.buffers = StepBuffers(self.batch, torch.float32, stress=False, energies=energies)
        self.buffers.fill(self.batch)
        self.ordered = copy.copy(self.batch.clone())
        n = self.batch.num_atoms
        order = torch.arange(n, dtype=torch.int32)
        if len(structures) == 1:
            order = order.flip(0)
        self.buffers.refresh(self.batch, order)
        self.ordered.atomic_numbers.copy_(self.batch.atomic_numbers[order.long()])
        self.buffers.host_output = torch.full_like(self.buffers.output, torch.nan)  # as of a GPU: not the same block
        self.search = EdgeSearch(potential.cutoff)
        self.search.allocate(self.batch.to(dtype=torch.float32), capacity)
        self.engine = GpuEngine(potential, self.batch, stress=False)
        buffers = self.engine.model.allocate(n, self.batch.num_systems, self.search.capacity)
        self.engine.model.one_launch = OneLaunch(self.engine.model, buffers, plan, emulator, moving)

    def run(self, kind="device"):
        launch_step(self.engine, self.buffers, self.search, self.ordered, kind)

    def reference(self):
        """The same in several calls, with the engine's own kernel for given edges."""
        other = copy.copy(self)
        other.buffers = StepBuffers(self.batch, torch.float32, stress=False, energies=self.buffers.energies_wanted)
        other.buffers.fill(self.batch)
        for name in ("order", "images", "origin", "far"):
            getattr(other.buffers, name).copy_(getattr(self.buffers, name))
        for name, value in self.buffers.inputs.items():
            other.buffers.inputs[name].copy_(value)
        other.search = EdgeSearch(self.search.cutoff, backend="brute_force")
        other.buffers.prepare(self.ordered.system_index)
        rounded = self.batch.to(dtype=torch.float32)
        other.search.allocate(rounded, self.search.capacity)
        edges = other.search.update(other.buffers.positions, other.buffers.cell)
        if not bool(edges.overflow):
            made = self.engine.model.run(
                other.buffers.places,
                self.ordered.atomic_numbers,
                self.ordered.system_index,
                other.buffers.box,
                self.ordered.charge,
                edges,
            )
            other.buffers.finish(edges, made.energy, made.energies, made.forces, None)
        return other


def assert_alike(case, other):
    for name in ("row_ptr", "source", "target", "shifts", "num_edges", "needed", "overflow"):
        assert torch.equal(getattr(case.search.edges, name), getattr(other.search.edges, name)), name
    for name in ("places", "positions", "box", "cell"):
        torch.testing.assert_close(getattr(case.buffers, name), getattr(other.buffers, name), equal_nan=True)
    for name, value in other.buffers.outputs.items():
        torch.testing.assert_close(case.buffers.outputs[name], value, atol=2e-6, rtol=1e-6, equal_nan=True)


def several():
    ion = Atoms("NH4", [[0, 0, 0], [0.6, 0.6, 0.55], [-0.6, -0.6, 0.6], [0.65, -0.6, -0.6], [-0.6, 0.6, -0.6]])
    ion.info["charge"] = 1
    return [ion, Atoms("O"), molecule("CH4")]


CASES = {
    "ethanol": (lambda: [molecule("CH3CH2OH")], ETHANOL),
    "several": (several, AtomClusters(3, 4, 2, 3, True, NETWORK)),
    "alone": (lambda: [Atoms("He")], AtomClusters(1, 1, 8, 1, True, NETWORK)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_a_whole_step_writes_what_its_parts_write(emulator, potential, name):
    make, plan = CASES[name]
    case = Case(emulator, potential, make(), plan, energies=True)
    case.run("host")
    other = case.reference()
    assert_alike(case, other)
    assert torch.equal(case.buffers.host_output, case.buffers.output)
    assert case.search.num_updates() == 2
    assert not bool(case.search.invalid)
    case.buffers.host_output.fill_(torch.nan)
    case.run("device")
    assert_alike(case, other)
    first = case.buffers._first_out
    assert torch.equal(case.buffers.host_output[:first], case.buffers.output[:first])
    assert case.buffers.host_output[first:].isnan().all()


@pytest.mark.nightly
@pytest.mark.parametrize("special", [False, True])
def test_the_order_in_which_blocks_run_changes_nothing(emulator, potential, monkeypatch, tmp_path, special):
    plan = AtomClusters.choose(9, 4, NETWORK)
    kernel = Emulator(tmp_path, **plan.constants) if special else emulator
    case = Case(kernel, potential, [molecule("CH3CH2OH")], plan, energies=True)
    case.run("host")
    wanted = case.buffers.host_output.clone()
    for seed in "12":
        monkeypatch.setenv("EMULATED_ORDER", seed)
        case.buffers.host_output.fill_(torch.nan)
        case.run("host")
        assert torch.equal(case.buffers.host_output, wanted)


@pytest.mark.nightly
def test_too_many_edges_are_flagged_and_nothing_is_written_beyond_the_list(emulator, potential):
    case = Case(emulator, potential, [molecule("CH3CH2OH")], ETHANOL, capacity=40)
    case.run()
    other = case.reference()
    for name in ("row_ptr", "num_edges", "needed", "overflow"):
        assert torch.equal(getattr(case.search.edges, name), getattr(other.search.edges, name))
    flags = case.buffers.outputs["flags"]
    assert (int(flags[NEEDED]), int(flags[OVERFLOW])) == (int(case.search.edges.needed), 1)
    assert int(flags[NEEDED]) > 40


@pytest.mark.nightly
def test_bad_and_far_coordinates_are_flagged(emulator, potential):
    case = Case(emulator, potential, [molecule("CH3CH2OH")], ETHANOL)
    good = case.buffers.inputs["positions"].clone()
    case.buffers.inputs["positions"][4, 1] = torch.nan
    case.run()
    flags = case.buffers.outputs["flags"].tolist()
    assert flags[NOT_FINITE] >= 1
    assert flags[FIRST_BAD] == 4  # no neighbour, so the others are finite
    assert bool(case.search.invalid)
    case.buffers.inputs["positions"].copy_(good + 5e4)
    case.run()
    flags = case.buffers.outputs["flags"].tolist()
    assert (flags[FAR], flags[NOT_FINITE], flags[FIRST_BAD]) == (1, 0, 9)
    case.buffers.inputs["positions"].copy_(good)
    case.run()
    assert case.buffers.outputs["flags"].tolist()[1:] == [0, 0, 9, 0, 0, 0, 0]
    assert np.isfinite(case.buffers.outputs["forces"].numpy()).all()


@pytest.mark.nightly
def test_only_steps_that_the_kernel_serves_are_launched_whole(emulator, potential):
    case = Case(emulator, potential, [molecule("CH4")], AtomClusters(1, 5, 8, 1, True, NETWORK))
    given = (case.engine, case.buffers, case.search, case.ordered)
    assert not launch_whole(*given, "energy")
    assert not launch_whole(*given, "device")  # the search is not that of a GPU
    case.search.backend, case.buffers.direct = "triton_brute_force", True
    assert launch_whole(*given, "device")
    case.search.skin = 0.5
    assert not launch_whole(*given, "device")
    case.search.skin = 0.0
    case.engine.model.one_launch = None
    assert not launch_whole(*given, "device")


class Run:
    """Steps of dynamics in one launch, beside the same run on the host."""

    def __init__(self, mover, potential, structures, plan, *, capacity=None, **options):
        from torchmdx.dynamics.device_state import DeviceState
        from torchmdx.dynamics.dynamics import Dynamics

        self.case = Case(None, potential, structures, plan, capacity=capacity, moving=lambda: mover)
        self.dynamics = Dynamics(potential, self.case.batch, **{"timestep": 0.5, "seed": 7, **options})
        self.state = DeviceState(self.dynamics.motion, torch.device("cpu"))
        start = self.dynamics.snapshot()
        for name in ("positions", "velocities", "forces"):
            getattr(self.state, name).copy_(torch.as_tensor(getattr(start, name)))

    def launch(self, steps):
        case, moving = self.case, self.state.moving(steps)
        launch_step(case.engine, case.buffers, case.search, case.ordered, "steps", moving)

    def done(self):
        return self.state.control.tolist()


def assert_as_on_the_host(run):
    """After two steps."""
    assert run.done() == [2, 0]
    run.dynamics.run(2)
    expected = run.dynamics.snapshot()
    for found, field in ((run.state.positions, "positions"), (run.state.velocities, "velocities")):
        np.testing.assert_allclose(found.numpy(), getattr(expected, field), atol=1e-7)
    np.testing.assert_allclose(run.state.forces.numpy(), expected.forces, atol=2e-5)
    np.testing.assert_allclose(run.state.energy.numpy(), expected.energy, rtol=1e-6, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "integrator"),
    [("ethanol", "verlet"), ("several", "verlet"), ("several", "langevin"), ("ethanol", "bussi")],
)
def test_steps_inside_one_launch_are_those_of_the_host(emulator, mover, potential, name, integrator):
    make, plan = CASES[name]
    run = Run(mover, potential, make(), plan, integrator=integrator, frozen=[1])
    run.launch(1)
    run.launch(1)
    assert run.done() == [2, 0]
    assert run.case.search.num_updates() == 3  # one is of the allocation
    whole = Run(mover, potential, make(), plan, integrator=integrator, frozen=[1])
    whole.launch(2)
    assert torch.equal(whole.state.block, run.state.block)
    assert torch.equal(whole.case.buffers.output, run.case.buffers.output)
    assert_as_on_the_host(run)
    case = run.case
    assert torch.equal(case.buffers.inputs["positions"], run.state.positions)
    torch.testing.assert_close(case.buffers.outputs["energy"], run.state.energy, rtol=0, atol=0)
    found = {name: value.clone() for name, value in case.buffers.outputs.items()}
    other = Case(emulator, potential, make(), plan)
    other.buffers.inputs["positions"].copy_(run.state.positions)
    other.run()
    for name, value in other.buffers.outputs.items():
        assert torch.equal(found[name], value), name
    for name in ("row_ptr", "source", "target", "shifts", "num_edges", "needed", "overflow"):
        assert torch.equal(getattr(case.search.edges, name), getattr(other.search.edges, name)), name


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [
        dict(num_layers=1, head="gated"),
        dict(num_layers=3, num_head_layers=1, messages="target"),
    ],
    ids=str,
)
def test_steps_of_other_networks_are_those_of_the_host(settings, tmp_path):
    torch.manual_seed(0)
    made = Potential(TensorNetConfig(**settings)).requires_grad_(False)
    network = ClusterNetwork.of(made.config)
    kernel = Emulator(tmp_path, STEPS_INSIDE=1, **network.constants)
    plan = AtomClusters(3, 3, 2, 2, True, network)
    run = Run(kernel, made, [molecule("CH3CH2OH")], plan, integrator="langevin")
    run.launch(2)
    assert_as_on_the_host(run)


@pytest.mark.nightly
@pytest.mark.parametrize("frozen", [[], [1]])
def test_a_drift_inside_one_launch_is_that_of_the_host(mover, potential, frozen):
    """NH4 keeps its drift if nothing is frozen; a single atom and CH4 beside it."""
    make, plan = CASES["several"]
    velocities = 0.02 * np.random.default_rng(0).normal(size=(11, 3)) + np.array([0.05, -0.04, 0.03])
    run = Run(mover, potential, make(), plan, integrator=Bussi(0.01), frozen=frozen, velocities=velocities)
    assert run.dynamics.motion.particles.held.tolist() == [not frozen, False, True]
    start = run.state.velocities.clone()
    run.launch(2)
    run.dynamics.run(2)
    found, expected = run.state.velocities.numpy(), run.dynamics.snapshot().velocities
    np.testing.assert_allclose(found, expected, atol=1e-7)
    assert np.abs(expected - start.numpy()).max() > 1e-3
    masses = run.dynamics.motion.particles.masses[6:, None]
    np.testing.assert_allclose((masses * found[6:]).sum(0), (masses * velocities[6:]).sum(0), atol=1e-6)


@pytest.mark.nightly
def test_steps_of_a_kernel_compiled_for_a_plan_have_the_same_bits(usual_mover, usual, tmp_path):
    plan = AtomClusters.choose(9, 6)
    constants = plan.constants_of_steps(9)
    assert constants == dict(ATOMS_PER_CLUSTER=2, LANES=8, STEPS_INSIDE=1, NEAR_ONLY=1)
    assert "NEAR_ONLY" not in plan.constants_of_steps(34)
    special = Emulator(tmp_path, **constants)
    one, other = (Run(kernel, usual, [molecule("CH3CH2OH")], plan) for kernel in (usual_mover, special))
    for run in (one, other):
        run.launch(2)
    assert torch.equal(one.state.block, other.state.block)
    assert torch.equal(one.case.buffers.output, other.case.buffers.output)
    assert_as_on_the_host(one)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", ["", "1"])
def test_a_bad_step_inside_a_launch_halts_all_blocks_at_the_step_before(mover, potential, monkeypatch, seed):
    if seed:
        monkeypatch.setenv("EMULATED_ORDER", seed)
    plan = AtomClusters(2, 3, 2, 2, True, NETWORK)
    one, many = (Run(mover, potential, [molecule("CH3OH")], plan) for _ in range(2))
    for run in (one, many):
        run.case.buffers.far.fill_(80.0)
        run.state.velocities[4] = torch.tensor([100.0, 0.0, 0.0])  # 50 Å in the first step, too far in the second
    one.launch(1)
    many.launch(4)
    assert (one.done(), many.done()) == ([1, 0], [1, 1])
    assert torch.equal(many.state.block[2:], one.state.block[2:])
    assert int(many.case.buffers.outputs["flags"][FAR]) == 1
    assert many.case.buffers.inputs["positions"][4, 0] > 80
    kept = many.state.block.clone()
    many.launch(4)  # changes nothing
    assert torch.equal(many.state.block, kept)
    many.case.buffers.far.fill_(1e4)
    many.state.control[1] = 0
    many.launch(2)
    one.launch(1)
    many_after = many.state.block.clone()
    one.case.buffers.far.fill_(1e4)
    one.state.control[1] = 0
    one.launch(2)
    assert one.done() == [3, 0]
    assert torch.equal(one.state.block, many_after)


@pytest.mark.nightly
def test_too_many_edges_halt_the_run_before_the_first_step(mover, potential):
    run = Run(mover, potential, [molecule("CH3CH2OH")], ETHANOL, capacity=40)
    kept = run.state.block.clone()
    run.launch(3)
    assert run.done() == [0, 1]
    assert torch.equal(run.state.block[2:], kept[2:])
    assert run.case.buffers.outputs["flags"].tolist()[OVERFLOW] == 1
