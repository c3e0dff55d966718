"""The kernels of restraints and barostats are compiled for a GPU of the Hopper kind, with or without one.

The interpreter runs what the compiler refuses. Nothing is launched here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys; sys.path[:0] = ["tests", "tests/dynamics", "tests/dynamics/kernels"]
from dataclasses import replace
from types import SimpleNamespace
import numpy as np
import torch
from compile_only import compiled
from gases import gas
from random_restraints import many_restraints
from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.device_state import DeviceState
from torchmdx.dynamics.integrators import Bussi, Langevin
from torchmdx.dynamics.restraint_terms import RestraintTerms
from torchmdx.step.buffer_storage import NUM_FLAGS

def zeros(*shape): return torch.zeros(shape, dtype=torch.float64)

for integrator in (Langevin(), Bussi()):
    loop = gas(integrator, CellRescaling(), 1.0, [150, 40])
    start = loop.snapshot().positions
    terms = RestraintTerms.of(many_restraints(2, np.random.default_rng(1)), loop.motion.particles, start)
    state = DeviceState(replace(loop.motion, restraints=terms), torch.device("cpu"))
    outputs = {"forces": zeros(190, 3), "energy": zeros(2), "stress": zeros(2, 3, 3)}
    outputs["flags"] = torch.zeros(NUM_FLAGS, dtype=torch.int64)
    buffers = SimpleNamespace(inputs={"positions": zeros(190, 3), "cell": zeros(2, 3, 3)}, outputs=outputs, doubts=None)
    state.launch_advance(buffers)
    state.launch_complete(buffers)
print(*(name for name, _ in compiled))
"""


def test_kernels_compile():
    pytest.importorskip("triton")
    result = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    restrained = {"evaluate_terms", "add_terms", "rescale_cell", "commit_cell"}
    assert set(result.stdout.split()) == {"advance", "advance_langevin", "complete", "rescale"} | restrained
