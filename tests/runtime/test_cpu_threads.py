"""In programs of their own, since a test run may have one thread."""

import json
import os
import subprocess

import forked_programs
import pytest

from torchmdx.runtime.cpu_threads import FEW_EDGES, FEW_EDGES_EXACT

PROGRAM = """
import json, threading, torch
from torchmdx.runtime.cpu_threads import limited_to, num_threads
torch.set_num_threads(3)
found = {}
with limited_to(1):
    found["inside"] = torch.get_num_threads()
    other = threading.Thread(target=lambda: found.update(other=torch.get_num_threads()))
    other.start()
    other.join()
found["after"] = torch.get_num_threads()
try:
    with limited_to(1):
        raise ValueError
except ValueError:
    found["after an error"] = torch.get_num_threads()
found["sizes"] = [num_threads(edges, exact=exact) for exact in (False, True) for edges in (FEW[exact] - 1, FEW[exact])]
import ase.build, torchmdx
from torchmdx.step.captured_step import CapturedStep
potential = torchmdx.load(device="cpu", dtype=torch.float64)
for name, atoms in (("small", ase.build.molecule("CH3OH")), ("large", ase.build.bulk("C", cubic=True))):
    step = CapturedStep(potential, torchmdx.System.from_ase(atoms), engine="exact")
    plain, seen = step.engine.run, []
    def run(*given, plain=plain, seen=seen, **more):
        seen.append(torch.get_num_threads())
        return plain(*given, **more)
    step.engine.run = run
    step(atoms.positions)
    found[name] = [seen, step.report().threads, torch.get_num_threads()]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    text = PROGRAM.replace("FEW[exact]", f"({FEW_EDGES}, {FEW_EDGES_EXACT})[exact]")
    done = subprocess.run(
        [*forked_programs.python(), "-c", text], capture_output=True, text=True, timeout=200, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_limit_holds_for_the_calling_thread_and_ends(found):
    assert (found["inside"], found["other"], found["after"], found["after an error"]) == (1, 3, 3, 3)


def test_threads_go_by_size(found):
    assert found["sizes"] == [1, 3, 1, 3]


def test_small_steps_take_one_thread_and_large_ones_all(found):
    assert found["small"] == [[1], 1, 3]
    assert found["large"] == [[3], 3, 3]
