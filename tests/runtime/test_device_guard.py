"""Which device is current while public entries run; torch.cuda is replaced, so that no GPU is needed."""

import contextlib
import threading

import pytest
import torch

from torchmdx.runtime import device_guard
from torchmdx.runtime.device_guard import (
    device_of_positions,
    device_of_potential,
    gpu_index,
    methods_on_own_device,
    on_device,
    runs_on,
)


@pytest.fixture
def current(monkeypatch):
    """The current device of each thread, as CUDA keeps it: 0 at first. Counts how often it is changed."""
    state = threading.local()

    class Switch(contextlib.AbstractContextManager):
        count = 0

        def __init__(self, device):
            self.index = torch.device(device).index

        def __enter__(self):
            Switch.count += 1
            self.before, state.index = getattr(state, "index", 0), self.index

        def __exit__(self, *_):
            state.index = self.before

    def now() -> int:
        return getattr(state, "index", 0)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", now, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", now)
    monkeypatch.setattr(torch.cuda, "device", Switch)
    now.switch = Switch
    return now


class Holder:
    """Stands for a potential, a step, a tensor: something on a device."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)


@pytest.mark.parametrize(
    ("device", "seen", "count"), [("cuda:1", 1, 1), ("cuda:0", 0, 0), ("cuda", 0, 0), ("cpu", 0, 0)]
)
def test_the_device_is_current_inside_and_the_one_before_afterwards(current, device, seen, count):
    with on_device(torch.device(device)):
        assert current() == seen
    assert (current(), current.switch.count) == (0, count)


def test_a_device_of_the_cpu_with_a_number_is_no_gpu(current):
    with torch.cuda.device("cuda:1"), on_device(torch.device("cpu:0")):
        assert current() == 1


def test_without_cuda_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", None, raising=False)
    for device in ("cpu", "cpu:0"):
        with on_device(torch.device(device)):
            pass


def test_a_function_runs_on_the_device_of_its_arguments_and_errors_leave_it(current):
    @runs_on(device_of_potential)
    def evaluate(potential, fail=False):
        if fail:
            raise ValueError("charge must be a number")
        return current()

    assert evaluate(Holder("cuda:1")) == 1
    assert evaluate(potential=Holder("cuda:1")) == 1
    assert evaluate("a path") == 0  # what it is given is for the function to refuse
    with pytest.raises(ValueError, match="charge"):
        evaluate(Holder("cuda:1"), fail=True)
    assert current() == 0
    assert runs_on(device_of_positions)(lambda engine, positions: current())(None, Holder("cuda:1")) == 1


def test_entries_run_on_the_devices_of_their_objects_in_every_thread(current):
    @methods_on_own_device("__init__", "__call__")
    class Step:
        def __init__(self, potential):
            self.made_on, self.device = current(), potential.device

        def __call__(self, positions):
            return current(), torch.is_inference_mode_enabled()

        def other(self):
            return current()

    step = Step(Holder("cuda:1"))
    assert step.made_on == Step(potential=Holder("cuda:1")).made_on == 1
    with torch.inference_mode():
        assert (step(None), step.other()) == ((1, False), 0)
        assert torch.is_inference_mode_enabled()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'potential'"):
        Step()
    found = []
    thread = threading.Thread(target=lambda: found.append((step(None), current())))
    thread.start()
    thread.join()
    assert found == [((1, False), 0)]
    with torch.cuda.device("cuda:1"):
        before = current.switch.count
        assert step(None)[0] == 1
        assert current.switch.count == before  # nothing to change


def test_cuda_without_a_number_is_the_current_gpu(current):
    assert gpu_index(torch.device("cuda")) == 0
    with torch.cuda.device("cuda:1"):
        assert gpu_index(torch.device("cuda")) == 1
    assert gpu_index(torch.device("cuda:3")) == 3


def test_public_entries_enter_their_device(monkeypatch, trained, ethanol):
    """Of every entry: the device whose tensors it works on is looked at before anything is launched."""
    from torchmdx import System, evaluate
    from torchmdx.neighbors.search import EdgeSearch
    from torchmdx.step.captured_step import CapturedStep
    from torchmdx.step.pool import StepPool

    seen = []
    inside = device_guard._is_current

    def looked_at(device):
        seen.append(device)
        return inside(device)

    monkeypatch.setattr(device_guard, "_is_current", looked_at)
    potential, system = trained("cpu", torch.float64), System.from_ase(ethanol)
    step = CapturedStep(potential, system, engine="exact")
    entries_of = {
        "step": lambda: step(ethanol.positions),
        "assign": lambda: step.assign(system),
        "capture": step.capture,
        "made": lambda: CapturedStep(potential, system),
        "evaluate": lambda: evaluate(potential, system),
        "search": lambda: EdgeSearch(4.0).allocate(step.batch),
        "engine": lambda: step.engine.run(step.buffers.places, step.buffers.box, step.search.edges),
        "pool": lambda: StepPool(potential)(system),
    }
    for name, entry in entries_of.items():
        seen.clear()
        entry()
        assert seen, name
        assert set(seen) == {torch.device("cpu")}
