"""Results are the same whatever the process has set for other work: dtype, device, gradients, precision, autocast."""

import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from foreign_state import STATES
from model_kinds import needs_dispersion

import torchmdx
from torchmdx import Calculator, Dynamics, Ensemble, Potential, System, evaluate
from torchmdx.datasets.frames import Frames
from torchmdx.engines.pairs.engine import PairEngine
from torchmdx.evaluation.properties.descriptors import descriptors
from torchmdx.evaluation.properties.hessian import hessian
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.runtime.isolation import isolated
from torchmdx.step.batch_pool import BatchPool
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.step import NORM, TrainStep

FLOAT32, FLOAT64 = torch.float32, torch.float64
TOLERANCES = {"float32": 2e-5, "float64": 1e-10}


def structures() -> list[Atoms]:
    found = [molecule("CH3OH"), bulk("Si", cubic=True)[:4]]
    for seed, atoms in enumerate(found):
        atoms.rattle(0.05, seed=seed)
    return found


def on(device: str, potential: Potential) -> Potential:
    with torch.inference_mode(False):  # weights that are made in it can't be trained
        return copy.deepcopy(potential).to(device)


def numbers_of(result: Any, *names: str) -> list[Any]:
    return [getattr(result, name) for name in names]


def of_evaluate(kind: str, dtype: torch.dtype, make: Any, device: str) -> Iterable[Any]:
    systems = [System.from_ase(atoms) for atoms in structures()]
    return numbers_of(evaluate(on(device, make(kind, dtype)), systems, stress=True), "energies", "forces", "stress")


def of_a_step(kind: str, dtype: torch.dtype, make: Any, device: str, engine: Any = None) -> Iterable[Any]:
    for atoms in structures():
        potential, system = on(device, make(kind, dtype)), System.from_ase(atoms)
        step = CapturedStep(potential, system, stress=True, energies=True)
        if engine is not None:
            engine(step)
        for _ in range(1 if device == "cpu" else 4):  # a GPU's third evaluation is captured
            found = step(atoms.positions)
        yield from numbers_of(found, "energy", "energies", "forces", "stress")
        atoms.rattle(0.02, seed=5)
        step.assign(System.from_ase(atoms))
        yield from numbers_of(step(atoms.positions, atoms.cell.array), "energy", "forces")


def of_a_calculator(kind: str, dtype: torch.dtype, make: Any, device: str) -> Iterable[Any]:
    for atoms in structures():
        atoms.calc = Calculator(on(device, make(kind, dtype)), device=device)
        yield atoms.get_potential_energy()
        yield atoms.get_forces()
        yield atoms.calc.get_descriptors(atoms)


def of_an_ensemble(dtype: torch.dtype, make: Any, device: str) -> Iterable[Any]:
    members = Ensemble([on(device, make(kind, dtype)) for kind in ("tensornet", "tensornet-SO(3)")])
    atoms = structures()[0]
    result = CapturedStep(members, System.from_ase(atoms), mode="eager")(atoms.positions)
    return numbers_of(result, "energy", "forces", "energy_spread", "force_spread")


def of_a_pool(dtype: torch.dtype, make: Any, device: str) -> Iterable[Any]:
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in structures()])
    pool = BatchPool(on(device, make("tensornet", dtype)), stress=True)
    pool.hold(batch)
    return numbers_of(pool(batch.positions, batch.cell), "energy", "forces", "stress")


def of_properties(kind: str, dtype: torch.dtype, make: Any, device: str) -> Iterable[Any]:
    potential, systems = on(device, make(kind, dtype)), [System.from_ase(atoms) for atoms in structures()]
    yield hessian(potential, systems[0], atoms=[1])
    for system in systems:
        yield descriptors(potential, system)


def of_a_search(backend: str, make: Any, device: str) -> Iterable[Any]:
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in structures()]).to(device)
    search = EdgeSearch(4.0, backend=backend, reverse=True)
    search.allocate(batch)
    edges = search.update(batch.positions + 0.01)
    return *numbers_of(edges, "row_ptr", "source", "shifts"), search.reverse


def of_relaxing(dtype: torch.dtype, make: Any, device: str) -> Iterable[Any]:
    options = dict(fmax=0.3, steps=4, cell=True, dtype=str(dtype).removeprefix("torch."), device=device)
    for found in torchmdx.relax(structures()[1:], on(device, make("zbl", dtype)), **options):
        yield found.atoms.positions
        yield found.atoms.cell.array


def of_dynamics(dtype: torch.dtype, make: Any, device: str) -> Iterable[Any]:
    system = System.from_ase(structures()[0])
    run = Dynamics(on(device, make("tensornet", dtype)), system, timestep=0.5, seed=3, steps_per_replay=2)
    return numbers_of(run.run(6), "positions", "velocities", "energy")


def of_training(kind: str, dtype: torch.dtype, make: Any, device: str, **options: Any) -> Iterable[Any]:
    potential = on(device, make(kind, dtype)).requires_grad_()
    forces = np.random.default_rng(1).normal(size=(6, 3))
    atoms = structures()[0]
    frame = Frames.single(atoms.positions, atoms.numbers, energy=-3.0, forces=forces)
    labelled = label(frame, np.arange(1), num_atoms=8, num_systems=2, cutoff=potential.cutoff, dtype=dtype)
    step = TrainStep(potential, LossSection(), OptimizerSection(), record=False, **options)
    step.set_rates(1e-3, (1.0, 1.0, 0.0))
    yield step(labelled.to(torch.device(device)))[:NORM]
    yield step.flat.values.clone()


def of_loading(make: Any, device: str) -> Iterable[Any]:
    potential = torchmdx.load(device=device)
    assert potential.dtype == FLOAT32
    return numbers_of(evaluate(potential, System.from_ase(structures()[0])), "energy", "forces")


@isolated  # as CapturedStep makes its own
def take_pairs(step: CapturedStep) -> None:
    step.engine = PairEngine(step.potential, step.ordered, stress=True)
    step.engine.reserve(step.search.capacity)


WORK: dict[str, Callable[..., Iterable[Any]]] = {
    "evaluate": functools.partial(of_evaluate, "tensornet2", FLOAT32),
    "evaluate with priors": functools.partial(of_evaluate, "everything", FLOAT64),
    "step": functools.partial(of_a_step, "tensornet", FLOAT32),
    "step of a TensorNet2": functools.partial(of_a_step, "tensornet2", FLOAT32),
    "step in float64": functools.partial(of_a_step, "tensornet-gated", FLOAT64),
    "step of the network of pairs": functools.partial(of_a_step, "tensornet", FLOAT32, engine=take_pairs),
    "step with Coulomb": functools.partial(of_a_step, "coulomb", FLOAT32),
    "step with ZBL": functools.partial(of_a_step, "zbl", FLOAT32),
    "step with D2": functools.partial(of_a_step, "d2", FLOAT32),
    "step with D3": functools.partial(of_a_step, "d3", FLOAT32),
    "step of an ensemble": functools.partial(of_an_ensemble, FLOAT32),
    "pool": functools.partial(of_a_pool, FLOAT32),
    "calculator": functools.partial(of_a_calculator, "tensornet2", FLOAT32),
    "properties": functools.partial(of_properties, "tensornet", FLOAT32),
    "cell list": functools.partial(of_a_search, "cell_list"),
    "brute force": functools.partial(of_a_search, "brute_force"),
    "vesin": functools.partial(of_a_search, "vesin"),
    "relaxing": functools.partial(of_relaxing, FLOAT32),
    "dynamics": functools.partial(of_dynamics, FLOAT32),
    "training": functools.partial(of_training, "tensornet", FLOAT32),
    "training with bfloat16": functools.partial(of_training, "tensornet", FLOAT32, bf16=True),
    "loading": of_loading,
}
ON_GPU = [name for name in WORK if name not in ("step with tables in torch", "cell list", "vesin")]
# Precisions of products change nothing on most CPUs: these must only go through.
OF_PRECISION = ("evaluate", "step", "relaxing", "training")
NEEDS = {
    "step with D3": needs_dispersion,
    "evaluate with priors": needs_dispersion,
}
# What others of WORK do too, with another potential or list, and what others of STATES change too.
NIGHTLY = {
    "step of a TensorNet2",
    "step in float64",
    "step with Coulomb",
    "step with ZBL",
    "step with D2",
    "training with bfloat16",
    "brute force",
    "vesin",
    "bfloat16 by default",
    "no_grad",
    "high precision",
    "medium precision",
}


def arrays(results: Iterable[Any]) -> list[np.ndarray]:
    return [
        np.asarray(torch.as_tensor(value, device="cpu") if not torch.is_tensor(value) else value.detach().cpu())
        for value in results
    ]


@pytest.fixture(scope="module")
def usual(make_kind) -> Callable[[str, str], list[np.ndarray]]:
    return functools.cache(lambda work, device: arrays(WORK[work](make_kind, device)))


def on_the_cpu(work: str, state: str) -> bool:
    return "GPU" not in state and ("precision" not in state or work in OF_PRECISION)


def case(work: str, state: str) -> Any:
    marks = [NEEDS[work]] if work in NEEDS else []
    if {work, state} & NIGHTLY:
        marks.append(pytest.mark.nightly)
    return pytest.param(work, state, marks=marks, id=f"{work}, {state}")


@pytest.mark.parametrize(
    ("work", "state"), [case(work, state) for work in WORK for state in STATES if on_the_cpu(work, state)]
)
def test_results_do_not_depend_on_the_state_of_the_process(make_kind, usual, work, state):
    same_results(make_kind, usual(work, "cpu"), work, state, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("work", "state"), [case(work, state) for work in ON_GPU for state in STATES])
def test_results_on_a_gpu_do_not_depend_on_the_state_of_the_process(make_kind, usual, work, state):
    same_results(make_kind, usual(work, "cuda"), work, state, "cuda")


def same_results(make: Any, wanted: list[np.ndarray], work: str, state: str, device: str) -> None:
    with STATES[state]():
        found = list(WORK[work](make, device))
    tolerance = 3e-6 if device == "cpu" else 3e-5  # sums of torch on a GPU have no fixed order; TF32 is off by 1e-3
    for one, other in zip(arrays(found), wanted, strict=True):
        assert one.dtype == other.dtype
        scale = max(1.0, np.abs(other[np.isfinite(other)]).max(initial=0.0))
        np.testing.assert_allclose(one, other, rtol=0, atol=scale * tolerance)
