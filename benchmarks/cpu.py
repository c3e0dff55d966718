"""Times evaluations and training steps on the CPU: torchmdx, torchmdx without its memory and thread settings, and
torchmd-net, in one run.

    python -m benchmarks.cpu [--peer] [--names dhfr,water216]

The models, weights and structures of step.py, crystals, and the steps of training.py, on all threads. Each side runs in
a process of its own, since settings of memory and waiting threads take effect when a process starts. Evaluations are
also timed next to a program that keeps one processor busy. ms: medians, from NumPy positions to NumPy forces, search
included. force_error: relative, against the exact model in float64, where the structure is small enough. Results go
to cpu.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torchmdx import Batch, Potential

# (what; structure, frames of a batch or transport): evaluations or steps
CASES = {
    ("tensornet", "alanine_dipeptide"): 60,
    ("tensornet", "chignolin"): 30,
    ("tensornet", "water216"): 15,
    ("tensornet", "dhfr"): 5,
    ("tensornet2", "alanine_dipeptide"): 60,
    ("tensornet2", "chignolin"): 20,
    ("tensornet2", "water216"): 8,
    ("crystals", "Cu32"): 30,
    ("crystals", "NaCl64"): 20,
    ("crystals", "Si216"): 10,
    ("training", "8"): 20,
    ("training", "32"): 8,
    ("openmm", "python"): 300,
    ("openmm", "native"): 300,
}
# Ends with the process that started it, even a killed one.
BUSY_PROGRAM = "import os; by = os.getppid()\nwhile os.getppid() == by: sum(range(100_000))"
# What glibc and GNU's OpenMP do by themselves. The first names a default, which is a choice all the same.
AS_THEY_COME = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7", "GOMP_SPINCOUNT": "300000"}
SIDES: dict[str, dict[str, str]] = {"torchmdx": {}, "libraries as they come": AS_THEY_COME, "torchmd-net": AS_THEY_COME}
# The network of matgl's universal potentials, with stress; torchmd-net has no such head.
UNIVERSAL = dict(num_radial=3, radial_basis="bessel", max_z=94, head="gated", num_head_layers=2) | dict.fromkeys(
    ("self_message", "readout_activation", "charge_factor"), False
)
CRYSTALS = {
    "Cu32": ("Cu", {}, 2),
    "NaCl64": ("NaCl", {"crystalstructure": "rocksalt", "a": 5.64}, 2),
    "Si216": ("Si", {}, 3),
    "Cu108": ("Cu", {}, 3),
}
EXACT_ATOMS = 700
STRETCHES = 10  # of OpenMM's steps and of evaluations, in turn, since the clock of a processor varies
OURS_ALONE = ("crystals", "openmm")  # what torchmd-net is not timed for
BUSY = 3  # evaluations next to another program
Run = Callable[[], np.ndarray | None]


def crystal(name: str) -> tuple[Potential, Batch]:
    """A potential like matgl's with random weights, and a crystal with displaced atoms."""
    import torch
    from ase.build import bulk

    from torchmdx import Batch, Potential, System, TensorNetConfig

    torch.manual_seed(0)
    element, settings, repeat = CRYSTALS[name]
    atoms = bulk(element, cubic=True, **settings) * repeat
    atoms.rattle(0.05, seed=1)
    made = Potential(TensorNetConfig(**UNIVERSAL)).requires_grad_(False)
    for layer in made.network.layers:
        layer.filters[4].weight.mul_(4)  # as in step.py
    return made, Batch.of(System.from_ase(atoms))


def ours(what: str, name: str) -> tuple[Run, np.ndarray | None]:
    """(run, exact forces if affordable)."""
    from benchmarks import step
    from torchmdx import evaluate
    from torchmdx.step.captured_step import CapturedStep

    if what == "crystals":
        model, batch = crystal(name)
    else:
        model, batch = step.potential(second=what == "tensornet2"), step.batch_of(name, 1)
    captured, positions = CapturedStep(model, batch, stress=what == "crystals"), batch.positions.numpy()
    exact = None
    if batch.num_atoms <= EXACT_ATOMS:
        forces = evaluate(copy.deepcopy(model).double(), batch).forces
        assert forces is not None
        exact = forces.numpy()
    return lambda: captured(positions).forces, exact


def theirs(what: str, name: str) -> Run:
    """torchmd-net as it comes, with our weights."""
    from benchmarks import peer_model, step

    model, batch = step.potential(second=what == "tensornet2"), step.batch_of(name, 1)
    config, box = model.config, batch.cell[0].float() if batch.pbc.any() else None
    most = min(64, int(batch.counts().max()))
    sizes = (config.cutoff, config.num_channels, config.num_layers, config.num_radial, box, most)
    peer = peer_model.build("eager", *sizes, charges=getattr(config, "num_charges", 0))
    peer_model.copy_weights(model, peer)
    for parameter in peer.parameters():
        parameter.requires_grad_(False)

    def run() -> np.ndarray:
        moving = batch.positions.float().requires_grad_(True)
        _, forces = peer(batch.atomic_numbers, moving, batch.system_index, box)
        return np.asarray(forces.detach()) * float(model.scale)

    return run


def training_step(size: int, side: str) -> Run:
    """A step of training, which gives no forces."""
    import torch

    from benchmarks import training

    if side == "torchmd-net":
        return training.peer_step(training.peer_model("cpu"), size, "cpu")
    torch.manual_seed(0)
    potential = training.Potential(training.TensorNetConfig(cutoff=training.CUTOFF))
    step = training.TrainStep(potential, training.LossSection(), training.OptimizerSection())
    step.set_rates(1e-4, (1.0, 1.0, 0.0))
    batch = training.batch(size, 0, "cpu")

    def run() -> None:
        step(batch)

    return run


def openmm_row(transport: str, count: int) -> dict[str, Any]:
    """Medians over stretches of a step of OpenMM, of an evaluation alone and of their difference.

    And of OpenMM's steps of the same particles without forces, which synchronise its threads all the same.
    """
    import openmm

    from benchmarks import openmm_steps, systems
    from torchmdx.openmm import add_potential

    numbers, positions, cell = systems.load("alanine_dipeptide")
    topology = openmm_steps.topology_of(numbers, cell)
    system = openmm_steps.system_of(topology)
    force = add_potential(system, topology, "organic-1", transport=transport, device="cpu")
    integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.0005)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("CPU"))
    context.setPositions(positions * openmm_steps.NM)
    integrator.step(20)
    bare_integrator = openmm.LangevinMiddleIntegrator(300, 1.0, 0.0005)
    bare = openmm.Context(openmm_steps.system_of(topology), bare_integrator, context.getPlatform())
    bare.setPositions(positions * openmm_steps.NM)
    bare_integrator.step(20)
    (step,) = force.evaluator._steps()
    each, times = count // STRETCHES, []
    for _ in range(STRETCHES):
        start = time.perf_counter()
        integrator.step(each)
        middle = time.perf_counter()
        for _ in range(each):
            step(positions, copy=False)
        end = time.perf_counter()
        bare_integrator.step(each)
        times.append((middle - start, end - middle, time.perf_counter() - end))
    ms, evaluation, alone = (float(np.median(column)) / each * 1e3 for column in zip(*times, strict=True))
    beyond = float(np.median([(a - b) / each for a, b, _ in times])) * 1e6
    found = dict(ms=round(ms, 3), evaluation_ms=round(evaluation, 3), beyond_us=round(beyond, 1))
    return dict(atoms=len(numbers), **found, openmm_alone_us=round(alone * 1e3, 1))


def measure(side: str, what: str, name: str, count: int, forces_file: str) -> dict[str, Any]:
    """In a process of its own: times, and forces to compare."""
    if what == "openmm":
        return openmm_row(name, count)
    exact = None
    if what == "training":
        run = training_step(int(name), side)
    elif side == "torchmd-net":
        run = theirs(what, name)
    else:
        run, exact = ours(what, name)
    forces = [run() for _ in range(2)][-1]
    times = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    if exact is not None and side == "torchmdx":
        np.save(forces_file, exact)
    atoms = 22 * int(name) if forces is None else len(forces)
    found: dict[str, Any] = {"atoms": atoms, "ms": round(float(np.median(times)) * 1e3, 2)}
    if forces is not None and Path(forces_file).exists():
        wanted = np.load(forces_file)
        found["force_error"] = float(np.linalg.norm(forces - wanted) / np.linalg.norm(wanted))
    return found


@contextmanager
def another_program(busy: bool) -> Iterator[None]:
    """That uses one processor all the time."""
    if not busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", BUSY_PROGRAM]) as loop:
        try:
            yield
        finally:
            loop.kill()


def ask(side: str, what: str, name: str, count: int, forces_file: str) -> dict[str, Any]:
    """The row of one side and case."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.cpu",
        "--case",
        side,
        what,
        name,
        str(count),
        forces_file,
    ]
    said = subprocess.run(command, env=os.environ | SIDES[side], capture_output=True, text=True, check=False)
    if said.returncode:
        return {"error": said.stderr.strip().splitlines()[-1][:300]}
    return dict(json.loads(said.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", help="of structures, numbers of frames, transports; all of them if left out")
    parser.add_argument("--peer", action="store_true", help="time torchmd-net as well")
    parser.add_argument("--case", nargs=5, help="measure this one, in this process, and print it")
    options = parser.parse_args()
    if options.case:
        side, what, name, count, forces_file = options.case
        print(json.dumps(measure(side, what, name, int(count), forces_file)))
        return
    from benchmarks import record

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for (what, name), count in CASES.items():
            if options.names and name not in options.names.split(","):
                continue
            for busy in (False, True) if what == "tensornet" else (False,):
                for side in SIDES if options.peer and what not in OURS_ALONE else list(SIDES)[:2]:
                    with another_program(busy):
                        row = ask(side, what, name, BUSY if busy else count, f"{folder}/{what}-{name}.npy")
                    rows.append({"what": what, "system": name, "by": side, "busy": busy, **row})
                    print(rows[-1], flush=True)
                record.write("cpu", rows)


if __name__ == "__main__":
    main()
