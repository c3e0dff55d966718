"""Every kernel of a run is compiled for a GPU of the Hopper kind, with or without one; nothing is launched here.

The interpreter runs what the compiler refuses. Attempts to exchange are equal to those of the host to the bit only if
no multiplication is fused with an addition, which the assembly shows.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys; sys.path[:0] = ["tests", "tests/dynamics", "tests/dynamics/kernels"]
import numpy as np
import torch
from compile_only import compiled
from types import SimpleNamespace
from gases import gas
from oscillators import atoms_alone, springs
from torchmdx import System
from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.device_blocks import DeviceBlocks
from torchmdx.dynamics.device_exchange import DeviceExchange
from torchmdx.dynamics.device_state import DeviceState
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.integrators import Bussi, Langevin
from torchmdx.step.buffer_storage import NUM_FLAGS

for loop in (springs(Langevin(), 1.0, [3, 3, 3]), gas(Bussi(), CellRescaling(), 1.0, [3, 3, 3])):
    state = DeviceState(loop.motion, torch.device("cpu"))
    outputs = {"forces": torch.zeros(9, 3), "energy": torch.zeros(3, dtype=torch.float64)}
    outputs["flags"] = torch.zeros(NUM_FLAGS, dtype=torch.int64)
    outputs |= {name: torch.zeros(9, dtype=torch.float64) for name in ("energy_spread", "force_spread")}
    outputs["stress"] = torch.zeros(3, 3, 3, dtype=torch.float64)
    inputs = {"positions": torch.zeros_like(state.positions), "cell": torch.zeros_like(state.cell)}
    buffers = SimpleNamespace(inputs=inputs, outputs=outputs, doubts=("energy_spread", "force_spread"))
    state.launch_advance(buffers)
    state.launch_complete(buffers)
loop = springs(Langevin(), 1.0, [3, 3, 3], fast=1.0, inner=4)
state = DeviceState(loop.motion, torch.device("cpu"))
evaluated = SimpleNamespace(
    buffers=buffers, device=torch.device("cpu"), _launch=lambda kind: None, _launch_moving=lambda moving: False
)
DeviceBlocks(state, loop.motion, evaluated, evaluated).launch()
temperatures = loop.motion.temperatures
DeviceExchange(TemperatureExchange(5, atoms_alone([3, 3, 3]), temperatures, 7), state, temperatures).launch()
for name, kernel in compiled:
    print(name, kernel.asm["ptx"].count("fma.rn.f64"), "div.full" in kernel.asm["ptx"])
"""


def test_kernels_compile_and_attempts_are_not_fused():
    pytest.importorskip("triton")
    result = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    found = {
        name: (int(fused), approximate) for name, fused, approximate in re.findall(r"(\w+) (\d+) (\w+)", result.stdout)
    }
    steps = {"rescale_cell", "advance", "advance_langevin", "complete", "commit_cell", "commit_spread", "rescale"}
    steps |= {"begin", "hand_over", "compare"}
    assert set(found) == steps | {"rank", "decide", "scale"}
    assert found["advance_langevin"][0] > 0  # fusion is the default
    # Divisions of float64 are exact, and their own refinement consists of instructions below PTX.
    assert found["decide"] == (0, "False")
    assert found["scale"] == (0, "False")
