"""The engine of an ensemble with fused kernels: on a GPU, and under Triton's interpreter."""

import copy

import numpy as np
import pytest
import torch
from ase import Atoms

from torchmdx import Batch, Potential, System, TensorNetConfig, evaluate
from torchmdx.engines.ensemble import EnsembleEngine
from torchmdx.engines.gpu.engine import GpuEngine
from torchmdx.neighbors.brute_force import brute_force

# (members, atoms of each system, stress): over 128 atoms or 14 systems the kernel takes several programs.
SHAPES = {"two": (2, [5], False), "three": (3, [70, 0, 110], True), "many systems": (5, [0] * 20 + [2], True)}


def numbers(count, sizes, stress, device, repeated=False):
    """An engine without members whose stacks hold random numbers, and these as NumPy arrays."""
    rng = np.random.default_rng(count)
    batch = Batch.from_systems([System.create(rng.normal(size=(n, 3)), np.ones(n, dtype=int)) for n in sizes])
    batch = batch.to(device, torch.float32)

    class Silent:
        name, table_error = "silent", 0.0

    engine = EnsembleEngine([Silent() for _ in range(count)], batch, stress=stress)
    given = {}
    for name in ("energy", "energies", "forces", "stresses"):
        stack = getattr(engine, name)
        if stack is not None:
            shape = (1 if repeated else count, *stack.values.shape[1:])
            drawn = torch.tensor(100 + rng.normal(size=shape), dtype=stack.values.dtype)
            given[name] = np.broadcast_to(drawn.double().numpy(), stack.values.shape)
            for member in range(count):
                stack.take(member, torch.tensor(given[name][member], dtype=stack.values.dtype, device=device))
    return engine, given


def oracle(given):
    """Mean and sample standard deviation by NumPy."""
    wanted = {name.replace("stresses", "stress"): values.mean(0) for name, values in given.items()}
    wanted["energy_spread"] = given["energy"].std(0, ddof=1)
    wanted["force_spread"] = np.sqrt(given["forces"].var(0, ddof=1).sum(-1))
    return wanted


def wrong(engine, wanted, repeated):
    """Which outputs are not what they should be; of equal members, to the last bit."""
    close = dict(rtol=0, atol=0) if repeated else dict(rtol=1e-12, atol=1e-12)
    found = {name: getattr(engine.outputs, name).cpu().numpy() for name in wanted}
    return [name for name in wanted if not np.allclose(found[name], wanted[name], **close)]


def combined(shape, repeated, device="cpu", kernel=True):
    engine, given = numbers(*SHAPES[shape], device, repeated)
    wanted = oracle(given)
    if repeated:  # NumPy's own mean of equal numbers is off by rounding
        wanted = {name.replace("stresses", "stress"): values[0] for name, values in given.items()}
        wanted |= {"energy_spread": np.zeros(len(SHAPES[shape][1])), "force_spread": np.zeros(sum(SHAPES[shape][1]))}
    if kernel:
        from torchmdx.engines.ensemble_kernel import launch_combine

        launch_combine(engine)
    else:
        engine._combine()
    return wrong(engine, wanted, repeated)


def members(device, channels):
    made = []
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made.append(Potential(TensorNetConfig(num_channels=channels, num_radial=8, num_layers=1, max_z=10)))
    return [potential.to(device).eval().requires_grad_(False) for potential in made]


def engines_together(device="cpu", sharing=False):
    """Kernel engines of three members in one engine: relative errors of forces and spread against the exact models."""
    atoms = Atoms("OCHH", [[0, 0, 0], [1.2, 0, 0], [1.8, 0.9, 0.1], [1.8, -0.9, 0]])
    potentials = members(device, 16)
    batch = Batch.of(System.from_ase(atoms)).to(device, torch.float32)
    engines = [GpuEngine(potential, batch, stress=True) for potential in potentials]
    engine = EnsembleEngine(engines, batch, stress=True)
    if sharing:
        engine.streams = []
    edges = brute_force(batch, 5.0)
    engine.reserve(edges.capacity)
    for _ in range(2):
        found = engine.run(batch.positions, batch.cell, edges)
    exact = [evaluate(copy.deepcopy(potential).double(), batch.to(dtype=torch.float64)) for potential in potentials]
    forces = np.stack([result.forces.cpu().numpy() for result in exact])
    energies = np.stack([result.energy.cpu().numpy() for result in exact])
    spread = np.sqrt(((forces - forces.mean(0)) ** 2).sum((0, 2)) / 2)
    size = np.abs(forces).max()
    return [
        float(np.abs(found.forces.cpu().numpy() - forces.mean(0)).max() / size),
        float(np.abs(found.force_spread.cpu().numpy() - spread).max() / size),
        float(np.abs(found.energy.cpu().numpy() - energies.mean(0)).max()),
        float(np.abs(found.energy_spread.cpu().numpy() - energies.std(0, ddof=1)).max()),
    ]


CASES = {f"{shape}, {'equal' if same else 'random'}": (shape, same) for shape in SHAPES for same in (False, True)}


@pytest.mark.parametrize("case", CASES)
def test_torch_gives_mean_and_spread(case):
    assert combined(*CASES[case], kernel=False) == []


@pytest.mark.interpreter
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_gives_mean_and_spread_under_the_interpreter(case):
    assert combined(*CASES[case]) == []


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_gives_mean_and_spread_on_a_gpu(case):
    assert combined(*CASES[case], device="cuda") == []


@pytest.mark.nightly
@pytest.mark.interpreter
def test_members_in_kernels_under_the_interpreter():
    found = engines_together()
    assert max(found) < 5e-6
    assert max(found) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("sharing", [False, True])
def test_members_in_kernels_on_a_gpu(sharing):
    assert max(engines_together("cuda", sharing)) < 1e-5
