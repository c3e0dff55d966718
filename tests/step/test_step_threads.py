"""Other threads of the process go on while a step is captured, and the capture goes on whatever they do."""

import contextlib
import threading

import numpy as np
import pytest
import torch

from torchmdx import System, evaluate
from torchmdx.step.captured_step import CapturedStep

pytestmark = pytest.mark.gpu
CAPTURES = 20


def poll() -> None:
    """Asks for an event until it has happened, which other captures of a process forbid in CUDA's default mode."""
    event = torch.cuda.Event()
    event.record()
    while not event.query():
        pass


def allocate() -> None:
    """Memory that torch has to ask CUDA for, and pinned memory."""
    big = torch.zeros(2**25, device="cuda")
    host = torch.zeros(2**16).pin_memory()
    big[: len(host)].copy_(host, non_blocking=True)
    torch.cuda.current_stream().synchronize()


def compute() -> None:
    # Not of torch's default generator: while any graph of the process is captured, torch refuses to use it outside.
    a = torch.arange(256 * 256, dtype=torch.float32, device="cuda").view(256, 256).sin()
    assert np.isfinite(float((a @ a).sum()))


@contextlib.contextmanager
def meanwhile(work):
    """Another thread does some work again and again, on a stream of its own; its errors are raised here."""
    stop, begun, errors, rounds = threading.Event(), threading.Event(), [], [0]

    def repeat():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    work()
                    rounds[0] += 1
                    begun.set()
        except Exception as error:
            errors.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=repeat)
    thread.start()
    begun.wait(timeout=60)
    try:
        yield rounds
    finally:
        stop.set()
        thread.join()
    assert errors == []


@pytest.mark.parametrize("work", [poll, allocate, compute], ids=lambda work: work.__name__)
def test_a_step_is_captured_while_another_thread_works(trained, ethanol, work):
    potential, system = trained("cuda"), System.from_ase(ethanol)
    wanted = evaluate(trained("cuda", torch.float64), system).forces.cpu().numpy()
    with meanwhile(work) as rounds:
        before = rounds[0]
        for _ in range(CAPTURES):
            step = CapturedStep(potential, system, mode="graph")
            found = step(ethanol.positions)
            assert step.mode == "graph"
            assert np.abs(found.forces - wanted).max() < 1e-4 * np.abs(wanted).max()
        assert rounds[0] > before


def test_a_step_is_captured_while_another_is_replayed(trained, ethanol, crystal):
    potential = trained("cuda")
    replayed = CapturedStep(potential, System.from_ase(crystal), mode="graph")
    first = replayed(crystal.positions).forces
    differences = []

    def replay():
        differences.append(np.abs(replayed(crystal.positions).forces - first).max())

    wanted = evaluate(trained("cuda", torch.float64), System.from_ase(ethanol)).forces.cpu().numpy()
    with meanwhile(replay):
        for _ in range(CAPTURES):
            found = CapturedStep(potential, System.from_ase(ethanol), mode="graph")(ethanol.positions)
            assert np.abs(found.forces - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert replayed.mode == "graph"
    assert max(differences) <= 1e-6 * np.abs(first).max()
