"""The quicker interpreter computes the same bits as Triton's own. In a process of its own: Triton decides at import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import inspect, sys; sys.path.insert(0, sys.argv[1])
import torch, triton
import triton.language as tl
from quick_interpreter import quicken
from triton.runtime import interpreter

@triton.jit
def partial(x, mask):
    return tl.where(mask, x * tl.exp(-x) + 2, 0.0), tl.sum(x, 0)

@triton.jit
def kernel(X, OUT, COUNT, width, WIDE: tl.constexpr):
    program = tl.program_id(0)
    n, m = tl.arange(0, 16), tl.arange(0, WIDE)
    mask = (n[:, None] < width) & (m[None, :] < width)
    for _ in range(2):
        x = tl.load(X + program * width * width + n[:, None] * width + m[None, :], mask=mask, other=0.0)
        y, column = partial(x, mask)
        z = tl.dot(y, tl.trans(y), input_precision="ieee") + tl.sum(y * column[None, :], 1)[:, None]
        tl.atomic_add(COUNT, tl.sum((z > 1.0).to(tl.int32)))
        half = z.to(tl.float16).to(tl.float32) - tl.max(z, 1)[None, :]
        total = tl.cumsum(half, 0) / (1.0 + tl.abs(z)).to(tl.float64)
    tl.store(OUT + program * 256 + n[:, None] * 16 + n[None, :], total)

def computed():
    x = torch.randn(3, 11, 11, generator=torch.Generator().manual_seed(0))
    out, count = torch.zeros(3, 16, 16, dtype=torch.float64), torch.zeros(1, dtype=torch.int32)
    kernel[(3,)](x, out, count, 11, WIDE=32)
    return out, count

class Calls:
    def __init__(self, function): self.function, self.count = function, 0
    def __call__(self, fn):
        self.count += 1
        return self.function(fn)

patch = interpreter._patch_lang = Calls(interpreter._patch_lang)
patch.__signature__ = inspect.signature(patch.function)
before, patched = computed(), patch.count
quicken()
for _ in range(2):
    after = computed()
    assert before[0].isfinite().all() and before[0].abs().sum() > 0 and before[1] > 0
    assert all(torch.equal(one, other) for one, other in zip(before, after))
# Once where the kernel starts: not for the functions that it calls, in three programs twice.
assert patched > 6
assert patch.count - patched == 2
"""


@pytest.mark.nightly
def test_the_quicker_interpreter_computes_the_same_bits(tmp_path):
    pytest.importorskip("triton")
    script = tmp_path / "both.py"  # a file: the interpreter reads a kernel's text
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(Path(__file__).parent)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
