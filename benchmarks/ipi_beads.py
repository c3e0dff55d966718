"""Path integrals in i-PI: the time of all beads of a step against one captured step of the same batch.

    python -m benchmarks.ipi_beads [--beads 32] [--steps 300] [--device cuda] [--quick]

Alanine dipeptide (22 atoms), organic-1 in float32, NVT by PILE-G. batch_ms: the captured step of the batch, from NumPy
positions to NumPy forces, one after the other. rested_ms: the same, each after a pause as long as a step of i-PI, as it
is in a run. driver_ms: the driver of ffdirect, lists in and lists out. own_ms: what is left of a step of i-PI with a
driver that sleeps for batch_ms and returns zeros (one that does not wait disturbs i-PI's threads less). step_ms: a step
of i-PI with torchmdx. Both are medians of --repeats runs that alternate, own_range and step_range their extremes.
in_run_ms: the driver in these runs. steps_of_batch: (step_ms - own_ms) / batch_ms.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io import write
from ipi.scripting import InteractiveSimulation

from benchmarks import record, systems
from torchmdx.ipi.driver import TorchmdxDriver
from torchmdx.structures.units import BOHR

BLOCK = 10
ZEROS = """
import time
import numpy as np
from ipi.pes.dummy import Dummy_driver
__DRIVER_CLASS__ = "Zeros"
class Zeros(Dummy_driver):
    def compute(self, cell, pos):
        time.sleep({seconds})
        return [(0.0, np.zeros_like(place), np.zeros((3, 3)), "") for place in pos]
"""
OURS = 'from torchmdx.ipi.driver import TorchmdxDriver\n__DRIVER_CLASS__ = "TorchmdxDriver"\n'
INPUT = """<simulation verbosity='quiet'>
 <output prefix='run'></output> <prng><seed>1</seed></prng>
 <ffdirect name='ff' pbc='False'><pes>custom</pes><pes_path>{file}</pes_path><batch_size>{beads}</batch_size>
  {parameters}</ffdirect>
 <system>
  <initialize nbeads='{beads}'><file mode='ase' units='angstrom'>init.xyz</file>
   <cell mode='abc' units='angstrom'>[40,40,40]</cell>
   <velocities mode='thermal' units='kelvin'>300</velocities></initialize>
  <forces><force forcefield='ff'/></forces>
  <motion mode='dynamics'><dynamics mode='nvt'><timestep units='femtosecond'>0.25</timestep>
   <thermostat mode='pile_g'><tau units='femtosecond'>100</tau></thermostat></dynamics></motion>
  <ensemble><temperature units='kelvin'>300</temperature></ensemble>
 </system>
</simulation>
"""


def rested_ms(work: Callable[[], Any], pause: float, count: int) -> float:
    """Milliseconds a call, the median of those that each follow a pause."""
    times = []
    for _ in range(count):
        time.sleep(pause / 1e3)
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def median_ms(work: Callable[[], Any], count: int) -> float:
    """Milliseconds a call, the median of blocks, after one block that captures."""
    times = []
    for _ in range(count // BLOCK + 1):
        start = time.perf_counter()
        for _ in range(BLOCK):
            work()
        times.append((time.perf_counter() - start) * 1e3 / BLOCK)
    return statistics.median(times[1:])


@contextlib.contextmanager
def timed_driver() -> Iterator[list[float]]:
    """Milliseconds of every call of torchmdx's driver."""
    times: list[float] = []
    original = TorchmdxDriver.compute

    def compute(self: TorchmdxDriver, cell: Any, pos: Any) -> Any:
        start = time.perf_counter()
        found = original(self, cell, pos)
        times.append((time.perf_counter() - start) * 1e3)
        return found

    TorchmdxDriver.compute = compute  # type: ignore[method-assign]
    try:
        yield times
    finally:
        TorchmdxDriver.compute = original  # type: ignore[method-assign]


def step_ms(file: str, parameters: str, beads: int, count: int) -> float:
    simulation = InteractiveSimulation(INPUT.format(file=file, parameters=parameters, beads=beads))
    times = []
    for _ in range(count // BLOCK + 2):
        start = time.perf_counter()
        simulation.run(BLOCK, write_outputs=False)
        times.append((time.perf_counter() - start) * 1e3 / BLOCK)
    return statistics.median(times[2:])


def measure(beads: int, count: int, device: str, repeats: int) -> dict[str, Any]:
    numbers, positions, _ = systems.load("alanine_dipeptide")
    write("init.xyz", Atoms(numbers, positions))
    Path("pes_ours.py").write_text(OURS)
    driver = TorchmdxDriver("init.xyz", "organic-1", device=device)
    places = [positions / BOHR + 1e-3 * np.random.default_rng(k).normal(size=positions.shape) for k in range(beads)]
    cells = [np.eye(3) * 40 / BOHR] * beads
    driver(cells, places)
    (step,) = driver.beads.steps.values()
    together, boxes = np.concatenate(places) * BOHR, np.stack(cells) * BOHR
    row = dict(beads=beads, atoms=len(numbers), device=device)
    row["batch_ms"] = median_ms(lambda: step(together, boxes), count)
    row["driver_ms"] = median_ms(lambda: driver(cells, places), count)
    row["mode"] = step.mode
    Path(f"pes_zeros{beads}.py").write_text(ZEROS.replace("{seconds}", str(row["batch_ms"] / 1e3)))
    parameters = f"<parameters>{{template: init.xyz, model: organic-1, device: {device}}}</parameters>"
    own, whole, inside = [], [], []
    for _ in range(repeats):
        own.append(step_ms(f"pes_zeros{beads}.py", "", beads, count) - row["batch_ms"])
        with timed_driver() as times:
            whole.append(step_ms("pes_ours.py", parameters, beads, count))
        inside += times[len(times) // 2 :]
    row |= dict(own_ms=statistics.median(own), own_range=[min(own), max(own)])
    row |= dict(step_ms=statistics.median(whole), step_range=[min(whole), max(whole)])
    row["in_run_ms"] = statistics.median(inside)
    row["rested_ms"] = rested_ms(lambda: step(together, boxes), row["own_ms"], count)
    row["steps_of_batch"] = (row["step_ms"] - row["own_ms"]) / row["batch_ms"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beads", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few beads and steps, to see that it runs; writes nothing")
    given = parser.parse_args()
    if given.quick:
        given.beads, given.steps, given.repeats = [4], 20, 1
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        rows = [measure(beads, given.steps, given.device, given.repeats) for beads in given.beads]
    for row in rows:
        print(row)
    if not given.quick:
        print(record.write("ipi", rows))


if __name__ == "__main__":
    main()
