"""Evaluations in forked processes. They run in a program of their own, with threads of torch."""

import os
import subprocess
import textwrap

import forked_programs
import pytest
import torch
from structures import DATA

PROGRAM = """
import multiprocessing, sys, warnings
import ase.build, torch
import torchmdx

def energy(path):
    calculator = torchmdx.Calculator(path, device="cpu", dtype="float64")
    return calculator.get_potential_energy(ase.build.molecule("CH3CH2OH"))

def work(queue, path, threads):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            if threads:
                torch.set_num_threads(threads)
            found = f"{energy(path):.6f} {energy(path):.6f} {torch.get_num_threads()}"
        except RuntimeError as error:
            found = f"RuntimeError: {error}"
    queue.put((found, [str(warning.message) for warning in seen]))

if __name__ == "__main__":
    path, used, threads = sys.argv[1], sys.argv[2] == "used", int(sys.argv[3])
    torch.set_num_threads(2)
    if used:
        torch.ones(1000, 1000).sin()  # starts OpenMP's threads
        print(f"{energy(path):.6f}")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue, path, threads))
    process.start()
    process.join(40)
    if process.exitcode is None:
        process.kill()
        print("hung")
    else:
        found, warned = queue.get()
        print(found)
        print("\\n".join(warned))
"""


def forked(used: str, threads: int = 0) -> list[str]:
    """What the program prints: the parent's energy if it was used, the child's energies and threads, warnings."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    arguments = [str(DATA / "tensornet.safetensors"), used, str(threads)]
    done = subprocess.run(
        [*forked_programs.python(), "-c", textwrap.dedent(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


@pytest.mark.nightly
def test_a_process_forked_after_an_evaluation_uses_one_thread_and_says_so():
    energy, found, warned = forked("used")
    assert found == f"{energy} {energy} 1"
    assert warned.startswith("this process was forked after an evaluation, so it evaluates with one thread. Start")
    assert "multiprocessing.get_context('spawn')" in warned


@pytest.mark.nightly
def test_more_threads_in_a_forked_process_are_refused():
    _, found = forked("used", threads=2)
    assert found.startswith("RuntimeError: this process was forked after an evaluation and can use only one thread")
    assert "got 2 from torch.set_num_threads" in found


@pytest.mark.nightly
def test_a_process_forked_before_the_first_evaluation_is_as_any_other():
    (found,) = forked("unused")
    first, second, threads = found.split()
    assert first == second
    assert threads == "2"


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_gpu_of_the_parent_is_refused_by_name(make_potential):
    from torchmdx.runtime import fork_guard

    torch.zeros(1, device="cuda")
    fork_guard.check_fork(torch.device("cuda"))
    child = os.fork()
    if child == 0:
        try:
            fork_guard.check_fork(torch.device("cuda:0"))
        except RuntimeError as error:
            os._exit(7 if "a forked process can't use cuda:0, which its parent has used" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
