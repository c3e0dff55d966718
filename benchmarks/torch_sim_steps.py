"""torch-sim with the model of torchmdx and with its own Lennard-Jones model: time per step beyond the evaluation.

    python -m benchmarks.torch_sim_steps [--systems 1024] [--steps 200] [--device cuda] [--quick]

Copies of alanine dipeptide (22 atoms), organic-1 in float32, states in float64. evaluation_ms: torchmdx, the captured
step alone on positions on the device, everything that it does included; Lennard-Jones, its forward. step_ms: a step of
torch-sim's integrator. overhead_ms and overhead: the difference, and its share of the evaluation. own_ms: a step of
torch-sim with a model that evaluates nothing and returns the same results each time, so torch-sim's own time.
unchecked_ms: a step with torchmdx where the host does not wait for the evaluation to check it, which is no way to
simulate, but shows what waiting costs. Medians of blocks of ten. relaxation: 1,000 distorted cells of diamond relaxed
with their cells, with autobatching; captures, of graphs; atoms at most, by max_memory_scaler; converged, of them
within --limit seconds. neighbor_list: of torch-sim's model; without Warp the best of those in PyTorch, since the
others visit one structure after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_sim
from ase import Atoms
from torch_sim.autobatching import InFlightAutoBatcher
from torch_sim.integrators import nve_init, nve_step, nvt_langevin_init, nvt_langevin_step
from torch_sim.models.interface import ModelInterface
from torch_sim.models.lennard_jones import LennardJonesModel
from torch_sim.neighbors import ALCHEMIOPS_AVAILABLE, alchemiops_nl_n2, torch_nl_n2

from benchmarks import record, systems
from torchmdx.torch_sim import TorchmdxModel

BLOCK = 10
LONGEST = 8.0  # seconds of one measurement, after its first block
TEMPERATURE = 300 * 8.617333e-5  # eV
TIMESTEP = 0.5e-3 * 98.22694788  # torch-sim's unit of time is Å (amu/eV)^(1/2); a ps has 98.2 of them


def median_ms(work: Callable[[], Any], count: int, device: torch.device) -> float:
    """Milliseconds a call, the median of blocks, after one block that captures and compiles; fewer if they are slow."""
    times: list[float] = []
    while len(times) < count // BLOCK + 1 and (len(times) < 2 or sum(times[1:]) * BLOCK < LONGEST * 1e3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(BLOCK):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / BLOCK)
    return statistics.median(times[1:])


def steps_of(model: Any, state: Any, integrator: str, count: int) -> float:
    """Milliseconds of a step of an integrator."""
    init, step = (nve_init, nve_step) if integrator == "nve" else (nvt_langevin_init, nvt_langevin_step)
    kT = torch.tensor(TEMPERATURE, dtype=model.dtype, device=model.device)
    dt = torch.tensor(TIMESTEP, dtype=model.dtype, device=model.device)
    moving = init(state=state.clone(), model=model, kT=kT)
    options = {} if integrator == "nve" else {"kT": kT}

    def one() -> None:
        nonlocal moving
        moving = step(state=moving, model=model, dt=dt, **options)

    return median_ms(one, count, model.device)


class Stored(ModelInterface):
    """A model that returns stored results: what is left of a step is torch-sim's own work."""

    def __init__(self, model: Any, state: Any) -> None:
        super().__init__()
        self._device, self._dtype = model.device, model.dtype
        self._compute_forces, self._compute_stress = True, False
        self.results = {name: values.clone() for name, values in model(state).items()}

    def forward(self, state: Any, **_: Any) -> dict[str, Any]:
        return dict(self.results)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """The host does not wait for evaluations on a GPU; flags that it reads are those of an earlier one."""
    wait = torch.cuda.Stream.synchronize
    torch.cuda.Stream.synchronize = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.cuda.Stream.synchronize = wait  # type: ignore[method-assign]


def compare(model: Any, state: Any, name: str, evaluate: Callable[[], Any], count: int) -> list[dict[str, Any]]:
    rows = []
    for integrator in ("nve", "nvt_langevin"):
        evaluation = median_ms(evaluate, count, model.device)
        step = steps_of(model, state, integrator, count)
        row = dict(model=name, systems=state.n_systems, atoms=state.n_atoms, integrator=integrator)
        row |= dict(evaluation_ms=evaluation, step_ms=step, overhead_ms=step - evaluation)
        row |= dict(overhead=step / evaluation - 1, own_ms=steps_of(Stored(model, state), state, integrator, count))
        if isinstance(model, TorchmdxModel):
            with unchecked():
                row["unchecked_ms"] = steps_of(model, state, integrator, count)
        rows.append(row)
        print(rows[-1], flush=True)
    return rows


def lennard_jones(device: torch.device, dtype: torch.dtype) -> tuple[LennardJonesModel, str]:
    """torch-sim's model with the neighbour list that is fastest for many small structures, and its name."""
    search = alchemiops_nl_n2 if ALCHEMIOPS_AVAILABLE and device.type == "cuda" else torch_nl_n2
    options: dict[str, Any] = dict(sigma=1.0, epsilon=0.001, cutoff=5.0, device=device, dtype=dtype)
    return LennardJonesModel(**options, neighbor_list_fn=search), search.__name__


def relaxation(model: TorchmdxModel, count: int, limit: float) -> dict[str, Any]:
    from importlib import import_module

    example = import_module("examples.12_torch_sim")
    crystals = torch_sim.initialize_state(
        [example.distorted_diamond() for _ in range(count)], model.device, model.dtype
    )
    most = model.max_memory_scaler(crystals[: min(count, 64)])
    start = time.perf_counter()
    converged = torch_sim.generate_force_convergence_fn(force_tol=0.05, include_cell_forces=True)

    def ended(state: Any, last_energy: Any = None) -> Any:
        found = converged(state, last_energy)
        return found if time.perf_counter() - start < limit else torch.ones_like(found)

    relaxed = torch_sim.optimize(
        crystals,
        model,
        optimizer=torch_sim.Optimizer.fire,
        init_kwargs=dict(cell_filter=torch_sim.CellFilter.frechet),
        convergence_fn=ended,
        # A quarter at a time, so that structures are swapped.
        autobatcher=InFlightAutoBatcher(model, memory_scales_with="n_atoms", max_memory_scaler=min(most, 2.0 * count)),
        max_steps=500,
    )
    seconds = time.perf_counter() - start
    forces = torch.linalg.vector_norm(model(relaxed)["forces"], dim=1)
    largest = torch.zeros(count, dtype=forces.dtype, device=forces.device)
    largest.index_reduce_(0, relaxed.system_idx, forces, "amax")
    row = dict(crystals=count, converged=int((largest <= 0.05).sum()), seconds=seconds)
    return row | dict(max_force=forces.max().item(), max_atoms=most, steps=len(model.pool.steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--crystals", type=int, default=1000, help="0: no relaxation")
    parser.add_argument("--limit", type=float, default=25.0, help="seconds of the relaxation")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few and small, to see that it runs; writes nothing")
    given = parser.parse_args()
    if given.quick:
        given.systems, given.steps, given.crystals = 8, 20, 8
    warnings.simplefilter("ignore", UserWarning)
    model = TorchmdxModel("organic-1", device=given.device, compute_stress=False)
    numbers, positions, _ = systems.load("alanine_dipeptide")
    state = torch_sim.initialize_state([Atoms(numbers, positions)] * given.systems, model.device, model.dtype)

    model(state)
    step = model.pool.steps[-1]
    cell = state.row_vector_cell.contiguous()
    rows = compare(model, state, "torchmdx", lambda: step(state.positions, cell, copy=False), given.steps)
    print(step.report())
    lj, search = lennard_jones(model.device, model.dtype)
    found = compare(lj, state, "Lennard-Jones of torch-sim", lambda: lj(state), given.steps)
    rows += [row | dict(neighbor_list=search) for row in found]
    if given.crystals:
        rows.append(relaxation(TorchmdxModel("organic-1", device=given.device), given.crystals, given.limit))
        print(rows[-1])
    if not given.quick:
        print(record.write("torch_sim", rows))


if __name__ == "__main__":
    main()
