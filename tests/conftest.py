"""Structures and potentials that many tests share. Structures are fresh ASE Atoms for every test."""

import functools
import gc
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from documents.blocks import summary
from emulated import Emulator
from interpreter import INTERPRETED, collected
from model_kinds import KINDS, NO_WIRES, kinds
from nightly import mark_nightly, outside
from quick_interpreter import quicken
from quick_workers import FORKS
from structures import DATA, SMALL, SMALL_CHARGES, STRUCTURES
from warning_policy import TESTS, own_modules

from torchmdx import Potential, System, TensorNetConfig, evaluate
from torchmdx.engines.registry import ENGINES
from torchmdx.models import registry
from torchmdx.models.registry import model_from_dict
from torchmdx.step import capture_policy
from torchmdx.step.graph import Graph

# Before CUDA starts: torch.use_deterministic_algorithms refuses products of cuBLAS without it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

if INTERPRETED:
    quicken()


def pytest_addoption(parser) -> None:
    parser.addoption("--nightly-half", type=int, choices=(0, 1), help="of the tests marked nightly only this half")


def pytest_configure(config) -> None:
    gc.disable()  # until everything is collected, which adds objects only
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells set it for commands in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else programs that tests interrupt ignore it too
    config.addinivalue_line("filterwarnings", f"error:::{own_modules()}")
    if INTERPRETED:  # NumPy, which computes in place of the GPU, warns of NaN and of division by zero
        config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """Only the files that have tests marked so, for `-m "interpreter ..."`."""
    if not config.option.markexpr.startswith("interpreter") or not collection_path.is_relative_to(TESTS):
        return None
    return True if collection_path not in collected() else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items) -> None:
    """The slow ones first: at the end, one of two workers would wait for them."""
    items[:] = [item for item in items if not (NO_WIRES in item.nodeid and "wire" in item.nodeid)]
    mark_nightly(items, whole_files=not any("::" in arg for arg in config.args))
    if (half := config.getoption("--nightly-half")) is not None:
        left = set(outside(items, half))
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    has_triton = importlib.util.find_spec("triton") is not None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item in items:
        if item.get_closest_marker("interpreter"):
            if item.path not in collected():
                raise pytest.UsageError(f"the file of {item.nodeid} must import needs_kernels, or say mark.interpreter")
            if not INTERPRETED:
                item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1 (make interpreter)"))
            elif not has_triton:
                item.add_marker(pytest.mark.skip(reason="needs triton"))
        elif item.get_closest_marker("gpu") and not count:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))
        elif item.get_closest_marker("two_gpus") and count < 2:
            item.add_marker(pytest.mark.skip(reason=f"needs two CUDA GPUs, found {count}"))


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_terminal_summary(terminalreporter) -> None:
    """What of the documents is not run, wherever their blocks are."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)]
    if any("test_blocks_run" in report.nodeid for report in reports):
        terminalreporter.write_line("\n".join(summary()))


@pytest.fixture(autouse=True)
def registries_as_they_were() -> Iterator[None]:
    """Models, priors and engines that a test registers are forgotten after it."""
    kept = [(table, dict(table)) for table in (registry.MODELS, registry.PRIORS, ENGINES)]
    yield
    for table, entries in kept:
        table.clear()
        table.update(entries)


@pytest.fixture
def data() -> Path:
    """The folder of checkpoints and their reference results."""
    return DATA


@pytest.fixture(scope="session")
def emulator(tmp_path_factory) -> Emulator:
    """What launches the kernel of one launch, emulated on the CPU."""
    pytest.importorskip("triton")
    return Emulator(tmp_path_factory.mktemp("emulated"))


@pytest.fixture
def quick_workers(monkeypatch) -> None:
    """Processes that the package starts are forks of one that has imported torch, as quick_workers.py says."""
    from torchmdx.datasets import parallel_xyz
    from torchmdx.datasets.labelling import workers
    from torchmdx.dynamics import process_loop

    for module in (parallel_xyz, workers, process_loop):
        monkeypatch.setattr(module, "multiprocessing", FORKS)


@pytest.fixture
def ethanol() -> Atoms:
    atoms = molecule("CH3CH2OH")
    atoms.rattle(0.05, seed=1)
    return atoms


@pytest.fixture
def cation() -> Atoms:
    positions = [[0, 0, 0], [0.6, 0.6, 0.55], [-0.6, -0.6, 0.6], [0.65, -0.6, -0.6], [-0.6, 0.6, -0.6]]
    return Atoms("NH4", positions, info={"charge": 1})


@pytest.fixture
def chiral() -> Atoms:
    """CHFClBr, which differs from its mirror image."""
    positions = [[0, 0, 0], [0.63, 0.63, 0.63], [-0.8, -0.78, 0.8], [-1.0, 1.02, -1.0], [1.1, -1.13, -1.1]]
    return Atoms("CHFClBr", positions)


@pytest.fixture
def crystal() -> Atoms:
    """Triclinic, smaller than the cutoff along every direction, with one atom outside the cell."""
    cell = np.array([[3.1, 0.1, 0.0], [0.7, 2.9, -0.2], [-0.5, 0.9, 3.3]])
    fractional = [[0.05, 0.12, 0.02], [2.55, -0.5, 0.45], [0.1, 0.62, 0.58]]
    return Atoms("OCH", fractional @ cell, cell=cell, pbc=True)


@pytest.fixture
def slab() -> Atoms:
    """Periodic along two oblique vectors, with vacuum along the third; stress is defined."""
    cell = np.array([[3.0, 0.2, 0.1], [0.8, 2.8, -0.1], [0.2, 0.3, 12.0]])
    positions = [[0.1, 0.2, 0.1], [1.6, 1.3, 0.9], [0.4, 1.7, 2.2], [4.9, 0.3, 1.9]]
    return Atoms("ONCH", positions, cell=cell, pbc=(True, True, False))


@pytest.fixture
def bare_slab(slab) -> Atoms:
    """The slab without a third lattice vector, standing on another edge of its cell."""
    cell = slab.cell.array[[1, 2, 0]].copy()
    cell[1] = 0
    slab.set_cell(cell)
    slab.pbc = (True, False, True)
    return slab


@pytest.fixture
def wire() -> Atoms:
    cell = [[0, 0, 0], [1.0, 2.0, 1.5], [0, 0, 0]]
    return Atoms("CNH", [[0, 0, 0], [0.9, 0.5, 1.2], [-0.8, 0.7, 0.3]], cell=cell, pbc=(False, True, False))


@pytest.fixture(params=STRUCTURES)
def structure(request) -> Atoms:
    """Each of STRUCTURES in turn."""
    return request.getfixturevalue(request.param)


def random_potential(
    dtype: torch.dtype = torch.float64, seed: int = 0, model: str = "tensornet", priors=(), **settings
) -> Potential:
    """A small potential with weights that make interactions of eV, and constants that are not 0 and 1.

    priors: functions that make their settings.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = model_from_dict(
            {"model": model, **SMALL, **(SMALL_CHARGES if model == "tensornet2" else {}), **settings}
        )
        potential = Potential(config, [make() for make in priors])
        with torch.no_grad():
            network = potential.network.tensornet if model == "qet" else potential.network
            network.embedding.filters.weight.mul_(2)
            for part in network.embedding.mix.parameters():
                part.mul_(4)
            for layer in network.layers:
                layer.filters[4].weight.mul_(6)
            potential.scale.fill_(1.7)
            potential.shift.fill_(-0.3)
            potential.reference_energies.uniform_(-2, 2)
    return potential.to(dtype).eval().requires_grad_(False)


@pytest.fixture(scope="session")
def make_potential():
    """random_potential(dtype, seed, model, priors, **settings of its configuration)."""
    return random_potential


@pytest.fixture(scope="session")
def make_kind():
    """A potential of the conformance list: make_kind(name, dtype). Not to be changed: it is shared by all tests."""

    @functools.cache
    def make(name: str, dtype: torch.dtype = torch.float64) -> Potential:
        return random_potential(dtype, **KINDS[name])

    return make


@pytest.fixture(params=kinds())
def conforming(request, make_kind) -> Potential:
    """Each of the conformance list in float64. Not to be changed."""
    return make_kind(request.param)


@pytest.fixture(scope="session")
def potential() -> Potential:
    """An O(3) potential in float64; not to be changed."""
    return random_potential()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    """The CPU, and a GPU where there is one."""
    return request.param


@functools.cache
def trained_potential(device: str, dtype: torch.dtype = torch.float32, seed: int = 2) -> Potential:
    """A TensorNet with filters of the size that training gives them, and forces of 1 eV/Å on ethanol.

    The same weights in every dtype. Not to be changed: it is shared by all tests.
    """
    if dtype != torch.float64:
        exact = trained_potential(device, torch.float64, seed)
        potential = Potential(exact.config)
        potential.load_state_dict(exact.state_dict())
        return potential.to(device=device, dtype=dtype).eval().requires_grad_(False)
    size = dict(num_channels=128, num_radial=32) if device.startswith("cuda") else dict(num_channels=16, num_radial=8)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        potential = Potential(TensorNetConfig(num_layers=2, cutoff=5.0, max_z=35, **size))
    with torch.no_grad():
        for layer in potential.network.layers:
            layer.filters[4].weight.mul_(4)
    potential = potential.double().eval().requires_grad_(False)
    forces = evaluate(potential, System.from_ase(molecule("CH3CH2OH"))).forces
    potential.scale.fill_(1 / float(forces.pow(2).mean().sqrt()))
    return potential.to(device)


@pytest.fixture(scope="session")
def trained():
    """trained_potential(device, dtype, seed)."""
    return trained_potential


@pytest.fixture
def graphs_pay(monkeypatch):
    """Makes graphs appear faster than launches: tests must not depend on measured times."""
    seconds_per_run = capture_policy.seconds_per_run

    def seconds(run, device):
        replay = getattr(run, "__func__", None) is Graph.replay
        seconds_per_run(run, device)
        return 1e-3 if replay else 2e-3

    monkeypatch.setattr(capture_policy, "seconds_per_run", seconds)
