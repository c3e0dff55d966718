"""The compiled engine in forked and spawned processes, in pools of processes, and with any number of threads.

Programs of their own, since a fork of the test process would inherit all that other tests have started.
"""

import os
import subprocess
import sys

import pytest
from structures import DATA

from torchmdx.engines.cpu import build

pytestmark = pytest.mark.skipif(build.tensornet_library() is None, reason="needs a C compiler")

PROGRAM = """
import multiprocessing, sys, threading, warnings
import ase.build, numpy as np, torch
import torchmdx

warnings.simplefilter("ignore")
NAMES = ("CH3CH2OH", "CH3CONH2", "C6H6", "CH3COCl", "C4H4NH", "H2O")

def calculator():
    return torchmdx.Calculator(sys.argv[1], device="cpu")

def forces(name, calc=None):
    atoms = ase.build.molecule(name)
    atoms.rattle(0.05, seed=1)
    atoms.calc = calc or calculator()
    found = atoms.get_forces()
    assert atoms.calc.pool.steps[-1].engine.name == "compiled"
    return name, found.tobytes()

def start():
    global own
    own = calculator()

def in_pool(name):
    return forces(name, own)

def report(found, wanted):
    print("equal" if dict(found) == wanted else "DIFFERENT", len(found))
"""

POOL = """
if __name__ == "__main__":
    method, used = sys.argv[2], sys.argv[3] == "used"
    torch.set_num_threads(2)
    before = [forces(name) for name in NAMES] if used else None
    with multiprocessing.get_context(method).Pool(2, start) as pool:
        # The parent evaluates at the same time, if it may have threads already.
        if used:
            report([forces(name) for name in NAMES], dict(before))
        found = pool.map(in_pool, NAMES * 3)
    report(found, dict(before or [forces(name) for name in NAMES]))
"""

CHAIN = """
if __name__ == "__main__":
    torch.set_num_threads(2)
    wanted = dict(forces(name) for name in NAMES)
    shared = calculator()
    forces("C6H6", shared)  # its buffers and its step are copied by the fork

    def child(queue, depth):
        queue.put([forces(name, shared) for name in NAMES])
        if depth:
            grandchild(queue, depth - 1)

    def grandchild(queue, depth):
        process = multiprocessing.get_context("fork").Process(target=child, args=(queue, depth))
        process.start()
        process.join(60)
        assert process.exitcode == 0, process.exitcode

    queue = multiprocessing.get_context("fork").SimpleQueue()
    reader = threading.Thread(target=lambda: [report(queue.get(), wanted) for _ in range(2)])
    reader.start()
    grandchild(queue, 1)
    reader.join(60)
    report([forces(name, shared) for name in NAMES], wanted)
"""

THREADS = """
if __name__ == "__main__":
    wanted = dict(forces(name) for name in NAMES)
    for count in (1, 2, 4, 3):
        torch.set_num_threads(count)
        report([forces(name) for name in NAMES], wanted)
"""


def lines_of(folder, program, *arguments):
    """What a program prints. A file, since spawned processes import it again."""
    (folder / "program.py").write_text(PROGRAM + program)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "program.py", str(DATA / "tensornet.safetensors"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.nightly
@pytest.mark.parametrize(("method", "used"), [("fork", "unused"), ("fork", "used"), ("spawn", "used")])
def test_a_pool_of_processes_gives_the_same_bits(tmp_path, method, used):
    parent = ["equal 6"] if used == "used" else []
    assert lines_of(tmp_path, POOL, method, used) == [*parent, "equal 18"]


@pytest.mark.nightly
def test_forks_of_forks_use_the_calculator_that_they_inherit(tmp_path):
    assert lines_of(tmp_path, CHAIN) == ["equal 6"] * 3


@pytest.mark.nightly
def test_any_number_of_threads_gives_the_same_bits(tmp_path):
    assert lines_of(tmp_path, THREADS) == ["equal 6"] * 4
