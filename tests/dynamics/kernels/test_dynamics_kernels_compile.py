"""What the compiler makes of kernels of a run, for a GPU of the Hopper kind, with or without one.

Attempts to exchange are equal to those of the host to the bit only if no multiplication is fused with an addition,
which the assembly shows. test_kernels_compile compiles all the kernels.
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
from oscillators import atoms_alone, springs
from torchmdx.dynamics.device_exchange import DeviceExchange
from torchmdx.dynamics.device_state import DeviceState
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.integrators import Langevin
from torchmdx.step.buffer_storage import NUM_FLAGS

loop = springs(Langevin(), 1.0, [3, 3, 3])
state = DeviceState(loop.motion, torch.device("cpu"))
outputs = {"forces": torch.zeros(9, 3), "energy": torch.zeros(3, dtype=torch.float64)}
outputs["flags"] = torch.zeros(NUM_FLAGS, dtype=torch.int64)
inputs = {"positions": torch.zeros_like(state.positions), "cell": torch.zeros_like(state.cell)}
state.launch_advance(SimpleNamespace(inputs=inputs, outputs=outputs, doubts=None))
temperatures = loop.motion.temperatures
DeviceExchange(TemperatureExchange(5, atoms_alone([3, 3, 3]), temperatures, 7), state, temperatures).launch()
for name, kernel in compiled:
    print(name, kernel.asm["ptx"].count("fma.rn.f64"), "div.full" in kernel.asm["ptx"])
"""


@pytest.mark.nightly
def test_attempts_are_not_fused():
    pytest.importorskip("triton")
    result = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    found = {
        name: (int(fused), approximate) for name, fused, approximate in re.findall(r"(\w+) (\d+) (\w+)", result.stdout)
    }
    assert set(found) >= {"advance_langevin", "rank", "decide", "scale"}
    assert found["advance_langevin"][0] > 0  # fusion is the default
    # Divisions of float64 are exact, and their own refinement consists of instructions below PTX.
    assert found["decide"] == (0, "False")
    assert found["scale"] == (0, "False")
