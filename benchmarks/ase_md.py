"""Times molecular dynamics through ASE: torchmdx's calculator, and torchmd-net's, in one run.

    python -m benchmarks.ase_md [--peer] [--names chignolin,dhfr] [--steps 300]

VelocityVerlet and Langevin at 300 K on one GPU, float32, with the weights of step.py on both sides. They are random, so
the time step is short; ns/day are at 1 fs. ms: a step, the median of five stretches. calculator_ms: the calculator
alone, for positions that change. replay_ms: what of it is the captured step. ase_share: the rest of the step, which is
ASE's own Python, divided by the step. torchmd-net takes a tenth of the steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator as AseCalculator
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.md.verlet import VelocityVerlet

import torchmdx
from benchmarks import peer_model, record, step, systems
from torchmdx.step.capture_policy import seconds_per_run

NAMES = ("alanine_dipeptide", "testosterone", "chignolin", "dhfr")
STRETCHES = 5
TIMESTEP_FS = 0.1  # of the dynamics; times are stated as at 1 fs
NS_DAY = 86400e3 * 1e-6  # of a step of 1 fs that takes 1 ms
INTEGRATORS: dict[str, Callable[[Atoms], Any]] = {
    "VelocityVerlet": lambda atoms: VelocityVerlet(atoms, TIMESTEP_FS * units.fs),
    "Langevin": lambda atoms: Langevin(
        atoms,
        TIMESTEP_FS * units.fs,
        temperature_K=300,
        friction=0.01 / units.fs,
        fixcm=False,
        rng=np.random.default_rng(0),
    ),
}


def peer_calculator(model: torchmdx.Potential, atoms: Atoms, compiled: bool) -> AseCalculator:
    """torchmd-net's own calculator around its model with our weights."""
    from torchmdnet import calculators

    config = model.config
    sizes = (config.cutoff, config.num_channels, config.num_layers, config.num_radial, None, min(64, len(atoms)))
    peer = peer_model.build("compile", *sizes)
    peer_model.copy_weights(model, peer)
    load, calculators.load_model = calculators.load_model, lambda *_, **__: peer
    try:
        return calculators.TMDNETCalculator("weights in memory", device="cuda", compile=compiled)
    finally:
        calculators.load_model = load


def milliseconds(work: Callable[[int], object], steps: int) -> float:
    """Median time of one of `steps` steps over stretches."""
    work(20)
    torch.cuda.synchronize()
    times = []
    for _ in range(STRETCHES):
        start = time.perf_counter()
        work(steps)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps * 1e3)
    return statistics.median(times)


def evaluations(atoms: Atoms) -> Callable[[int], None]:
    """Forces for as many positions, with nothing else in between."""
    shift = 1e-4 * np.random.default_rng(0).normal(size=atoms.positions.shape)

    def work(count: int) -> None:
        for k in range(count):
            atoms.arrays["positions"] += shift if k % 2 else -shift
            atoms.calc.calculate(atoms, ["forces"], ["positions"])

    return work


def timed(atoms: Atoms, calculator: AseCalculator, steps: int) -> list[dict[str, Any]]:
    """A row for each integrator."""
    start, rows = atoms.positions.copy(), []
    atoms.calc = calculator
    atoms.get_forces()  # compiles
    alone = milliseconds(evaluations(atoms), steps)
    own = {"replay_ms": replay(calculator)} if isinstance(calculator, torchmdx.Calculator) else {}
    for name, make in INTEGRATORS.items():
        atoms.positions = start
        MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(0))
        ms = milliseconds(make(atoms).run, steps)
        row = dict(integrator=name, ms=round(ms, 4), calculator_ms=round(alone, 4), ns_day=round(NS_DAY / ms, 1))
        rows.append(row | {"ase_share": round(max(0.0, 1 - alone / ms), 3)} | own)
    return rows


def replay(calculator: torchmdx.Calculator) -> float | None:
    """Milliseconds of the graph of the last step, launched and waited for; None if it has none."""
    policy = calculator.pool.steps[-1].policy
    if "host" not in policy.graphs:
        return None
    return round(seconds_per_run(policy.graphs["host"].replay, policy.device, 200) * 1e3, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--peer", action="store_true", help="time torchmd-net's calculator as well")
    options = parser.parse_args()
    model, rows = step.potential(False).cuda(), []
    for name in options.names.split(","):
        numbers, positions, _ = systems.load(name)
        makers: dict[str, Callable[[Atoms], AseCalculator]] = {
            "torchmdx": lambda _: torchmdx.Calculator(model, device="cuda")
        }
        if options.peer:
            makers["torchmd-net"] = lambda atoms: peer_calculator(model, atoms, compiled=False)
            makers["torchmd-net, compile"] = lambda atoms: peer_calculator(model, atoms, compiled=True)
        for by, make in makers.items():
            atoms = Atoms(numbers, positions, info={"charge": 0})
            try:
                found = timed(atoms, make(atoms), options.steps if by == "torchmdx" else max(10, options.steps // 10))
            except Exception as error:
                found = [{"error": f"{type(error).__name__}: {error}"[:300]}]
            for row in found:
                rows.append({"system": name, "atoms": len(atoms), "by": by, **row})
                print(rows[-1], flush=True)
        record.write("ase_md", rows)


if __name__ == "__main__":
    main()
