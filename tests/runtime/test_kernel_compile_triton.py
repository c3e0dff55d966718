"""What Triton itself says of a kernel that is missing, on a GPU that is made up: nothing is launched."""

import subprocess
import sys

import pytest

pytest.importorskip("triton")

SCRIPT = """
import contextlib, sys
sys.path.insert(0, "FOLDER")
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

class Hopper:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

driver.set_active(Hopper())
from foreign import theirs
from torchmdx.runtime import kernel_compile
from torchmdx import Batch, System
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.neighbors.kernels.reverse import launch

kernel_compile._discarded_recording = lambda device: contextlib.nullcontext()
torch.cuda.set_device = lambda device: None
torch.cuda.device = lambda device: contextlib.nullcontext()
met, serialize = [], triton.runtime.jit.serialize_specialization_data
def count(name, *given):
    met.append(name.rsplit(".", 1)[1])
    return serialize(name, *given)
triton.runtime.jit.serialize_specialization_data = count
before, preloaded = JITFunction._call_hook, []
preload = JITFunction.preload
JITFunction.preload = lambda self, data: (preloaded.append(self.fn.__name__), preload(self, data))[1]

def work():
    theirs[(1,)](out, KIND=frozenset([1]))
    launch(edges, out)

compiled, run = [], JITFunction.run
def compile_only(self, *args, grid, warmup, **options):
    if run(self, *args, grid=grid, warmup=True, **options) is not None:
        compiled.append(self.fn.__name__)
JITFunction.run = compile_only
batch = Batch.from_systems([System.create([[0.0, 0, 0], [0, 0, 1.1]], [6, 8])])
edges = brute_force(batch, 3.0)
out = torch.zeros(edges.capacity, dtype=torch.int32)

kernel_compile.run_compiled(work, torch.device("cuda", 0))
assert preloaded == ["_reverse"], preloaded
assert set(met) == {"_reverse"}, met
assert JITFunction._call_hook is before
assert compiled[-2:] == ["theirs", "_reverse"], compiled
"""
FOREIGN = """
import triton
import triton.language as tl

@triton.jit
def theirs(X, KIND: tl.constexpr):
    tl.store(X, 1)
"""


@pytest.mark.nightly
def test_kernels_of_this_package_alone_are_described_and_compiled_beside_each_other(tmp_path):
    """The other kernel has a constant that Triton cannot write as text."""
    (tmp_path / "foreign.py").write_text(FOREIGN)
    script = SCRIPT.replace("FOLDER", str(tmp_path))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
