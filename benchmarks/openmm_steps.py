"""Times OpenMM with a potential: each transport, the replay alone, and openmm-ml with torchmd-net.

    python -m benchmarks.openmm_steps [--names a,b] [--transports none,native,python,torch] [--peer]

Without --transports all that are installed are timed. CUDA platform, mixed precision, LangevinMiddle at 1 fs; ns/day at
1 fs. Atoms of 10⁸ amu hardly move, so that an untrained potential keeps the edges of the structure, for both programs.
Step times are wall clock over many steps, in five stretches with replays alone after each. Steps, replays and their
difference are medians over the stretches, since the clock of a GPU varies. Set-up is everything from the structure to
the end of the first step: for the second time in a process, and for the first time, with no compiled kernels on disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import torch
from openmm import app, unit

from benchmarks.record import write
from benchmarks.systems import load
from torchmdx import Potential, TensorNetConfig, save
from torchmdx.openmm import add_potential

NAMES = ("alanine_dipeptide", "chignolin", "dhfr", "water1000", "water32768")
PEER_NAMES = ("alanine_dipeptide", "chignolin", "dhfr")  # the systems of its published numbers
NM = 0.1
MASS = 1e8  # amu


def topology_of(numbers: np.ndarray, cell: np.ndarray | None) -> app.Topology:
    topology = app.Topology()
    residue = topology.addResidue("ALL", topology.addChain())
    for number in numbers:
        element = app.Element.getByAtomicNumber(int(number))
        topology.addAtom(element.symbol, element, residue)
    if cell is not None:
        topology.setPeriodicBoxVectors([openmm.Vec3(*(row * NM)) * unit.nanometer for row in cell])
    return topology


def system_of(topology: app.Topology) -> openmm.System:
    system = openmm.System()
    for _ in topology.atoms():
        system.addParticle(MASS)
    return system


def steps_for(num_atoms: int) -> int:
    return 2000 if num_atoms < 500 else 400 if num_atoms < 10_000 else 100


def seconds_a_step(context: openmm.Context, count: int, force: Any = None) -> tuple[float, float, float]:
    """Medians of five stretches: of a step, of the bare replay after it, and of their difference; nan without one."""

    def wait() -> None:  # waits for the GPU, without another evaluation
        context.getState(energy=True, groups={31})

    integrator = context.getIntegrator()
    integrator.step(max(20, count // 10))
    wait()
    steps, replays = [], []
    for _ in range(5):
        start = time.perf_counter()
        integrator.step(count // 5)
        wait()
        steps.append((time.perf_counter() - start) / (count // 5))
        replays.append(float("nan") if force is None else replay_seconds(force, count // 5))
    beyond = [step - replay for step, replay in zip(steps, replays, strict=True)]
    return statistics.median(steps), statistics.median(replays), statistics.median(beyond)


def context_of(system: openmm.System, positions: np.ndarray) -> openmm.Context:
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.001)
    platform = openmm.Platform.getPlatformByName("CUDA")
    context = openmm.Context(system, integrator, platform, {"Precision": "mixed"})
    context.setPositions(positions * NM)
    return context


def replay_seconds(force: Any, count: int) -> float:
    """The graph that the native transport launches, alone: the mean; nan where there is none."""
    steps = [s for s in force.evaluator._steps() if s.policy.graphs]
    if not steps:
        return float("nan")
    kind = "device" if "device" in steps[-1].policy.graphs else "host"
    graph, times = steps[-1].policy.graphs[kind], []
    for _ in range(count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.fmean(times)


def set_up(name: str, transport: str, path: Path) -> tuple[Any, openmm.Context, float]:
    """The force, a context after its first step, and the seconds from the structure to there."""
    numbers, positions, cell = load(name)
    start = time.perf_counter()
    topology = topology_of(numbers, cell)
    system = system_of(topology)
    force = None
    if transport != "none":
        force = add_potential(system, topology, path, transport=transport, mode="graph")
    context = context_of(system, positions)
    context.getIntegrator().step(1)
    context.getState(energy=True)
    return force, context, time.perf_counter() - start


def measure(name: str, transport: str, path: Path) -> dict[str, Any]:
    _, context, first = set_up(name, transport, path)
    del context
    force, context, again = set_up(name, transport, path)
    count = context.getSystem().getNumParticles()
    found = dict(system=name, atoms=count, transport=transport, setup_s=round(again, 2), setup_first_s=round(first, 2))
    step, replay, beyond = seconds_a_step(context, steps_for(count), force)
    found |= dict(step_ms=round(step * 1e3, 4), ns_day=round(86400e-6 / step, 1))
    if force is not None:
        found |= dict(replay_ms=round(replay * 1e3, 4), beyond_us=round(beyond * 1e6, 1))
        found |= dict(recoveries=force.num_recoveries)
    return found


def peer_checkpoint(path: Path) -> Path:
    """A torchmd-net checkpoint of an untrained model of the same size."""
    from torchmdnet.models.model import create_model

    settings = dict(
        model="tensornet", precision=32, embedding_dimension=128, num_layers=2, num_rbf=32, rbf_type="expnorm",
        trainable_rbf=False, activation="silu", cutoff_lower=0.0, cutoff_upper=5.0, max_z=100, max_num_neighbors=64,
        equivariance_invariance_group="O(3)", static_shapes=True, derivative=False, atom_filter=-1, prior_model=None,
        output_model="Scalar", reduce_op="sum", box_vecs=None, remove_ref_energy=False, check_errors=False,
        charge=False, coulomb_cutoff=None, output_mlp_num_layers=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = create_model(dict(settings))
    with torch.no_grad():
        model.std.fill_(0.01)
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save(dict(hyper_parameters=settings, state_dict=weights), path)
    return path


def measure_peer(name: str, folder: Path) -> dict[str, Any]:
    from openmmml import MLPotential

    numbers, positions, cell = load(name)
    path = peer_checkpoint(folder / "peer.ckpt")
    topology = topology_of(numbers, cell)
    start = time.perf_counter()
    system = MLPotential("torchmdnet", modelPath=str(path)).createSystem(topology)
    for i in range(system.getNumParticles()):
        system.setParticleMass(i, MASS)
    context = context_of(system, positions)
    context.getIntegrator().step(1)
    context.getState(energy=True)
    setup = time.perf_counter() - start
    step, _, _ = seconds_a_step(context, max(40, steps_for(len(numbers)) // 4))
    return dict(
        system=name,
        atoms=len(numbers),
        transport="openmm-ml 1.8, torchmd-net",
        setup_s=round(setup, 2),
        step_ms=round(step * 1e3, 4),
        ns_day=round(86400e-6 / step, 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    installed = ("none", "native", "python", *(["torch"] if find_spec("openmmtorch") else []))
    parser.add_argument("--transports", default=",".join(installed), help="torch needs openmm-torch")
    parser.add_argument("--peer", action="store_true", help="also openmm-ml with torchmd-net, which must be installed")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        potential = Potential(TensorNetConfig())
        path = Path(folder) / "model.safetensors"
        save(potential, path)
        for name in options.names.split(","):
            for transport in options.transports.split(","):
                try:
                    rows.append(measure(name, transport, path))
                except Exception as error:
                    rows.append(dict(system=name, transport=transport, error=f"{type(error).__name__}: {error}"[:200]))
                print(rows[-1], flush=True)
                write("openmm", rows)
            if options.peer and name in PEER_NAMES:
                try:
                    rows.append(measure_peer(name, Path(folder)))
                except Exception as error:
                    rows.append(dict(system=name, transport="peer", error=f"{type(error).__name__}: {error}"[:300]))
                print(rows[-1], flush=True)
                write("openmm", rows)


if __name__ == "__main__":
    main()
