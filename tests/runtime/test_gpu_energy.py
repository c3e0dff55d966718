"""The energy of a GPU by a made-up NVML."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from torchmdx.runtime import gpu_energy
from torchmdx.runtime.gpu_energy import EnergyMeter, NoEnergyReading

CUDA = torch.device("cuda", 1)


class Nvml:
    """A GPU that takes 250 mJ between two readings."""

    def __init__(self, **statuses: int) -> None:
        self.statuses, self.energy, self.uuids, self.initialised = statuses, 1000, [], False

    def nvmlInit_v2(self) -> int:
        self.initialised = True
        return self.statuses.get("init", 0)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle) -> int:
        assert self.initialised
        self.uuids.append(uuid)
        handle._obj.value = 42
        return self.statuses.get("handle", 0)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, counter) -> int:
        assert handle.value == 42
        self.energy += 250
        counter._obj.value = self.energy
        return self.statuses.get("energy", 0)


class Outspoken(Nvml):
    def __init__(self, **statuses: int) -> None:
        super().__init__(**statuses)

        def describe(status: int) -> bytes:
            return {3: b"Not Supported"}.get(status)

        self.nvmlErrorString = describe


@pytest.fixture(autouse=True)
def uuid(monkeypatch, request):
    """Properties of a GPU, of which torch tells the UUID; those of the real one in a test on a GPU."""
    if request.node.get_closest_marker("gpu"):
        return None
    found = SimpleNamespace(uuid="6d50832c-b65d")
    monkeypatch.setattr(gpu_energy.torch.cuda, "get_device_properties", lambda device: found)
    return found


def test_the_counter_is_in_joules():
    nvml = Nvml()
    meter = EnergyMeter(CUDA, nvml)
    assert nvml.uuids == [b"GPU-6d50832c-b65d"]
    assert meter.joules() == pytest.approx(1.5)
    assert meter.joules() == pytest.approx(1.75)


def test_runs_share_the_energy(monkeypatch):
    clock = iter([0.0, 0.5, 1.5, 2.5, 3.0])
    monkeypatch.setattr(gpu_energy.time, "perf_counter", lambda: next(clock))
    runs = []
    found = EnergyMeter(CUDA, Nvml()).measure(lambda: runs.append(1), seconds=2.0)
    assert (found.runs, len(runs)) == (3, 3)
    assert found.seconds == 3.0
    assert found.joules == pytest.approx(0.25)
    assert found.joules_a_run == pytest.approx(0.25 / 3)
    assert found.watts == pytest.approx(0.25 / 3)


def test_there_is_at_least_one_run():
    assert EnergyMeter(CUDA, Nvml()).measure(lambda: None, seconds=0.0).runs == 1


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (Nvml(init=9), "nvmlInit_v2 of libnvidia-ml.so.1 failed: error 9"),
        (Nvml(handle=6), "nvmlDeviceGetHandleByUUID of libnvidia-ml.so.1 failed: error 6"),
        (Outspoken(energy=3), r"nvmlDeviceGetTotalEnergyConsumption .* failed: Not Supported \(error 3\)"),
        (Outspoken(energy=77), "failed: error 77"),
        (object(), "libnvidia-ml.so.1 has no nvmlInit_v2: the driver is too old"),
    ],
)
def test_what_nvml_refuses_is_said_in_its_words(library, said):
    with pytest.raises(NoEnergyReading, match=said):
        EnergyMeter(CUDA, library)


def test_without_nvml(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(gpu_energy.ctypes, "CDLL", missing)
    with pytest.raises(NoEnergyReading, match=r"libnvidia-ml\.so\.1, which comes with NVIDIA's driver, was not found"):
        EnergyMeter(CUDA)


def test_a_torch_that_does_not_tell_the_uuid(uuid):
    del uuid.uuid
    with pytest.raises(NoEnergyReading, match="does not tell the UUID of a GPU"):
        EnergyMeter(CUDA, Nvml())


@pytest.mark.gpu
def test_a_gpu_takes_energy():
    torch.cuda.init()
    try:
        meter = EnergyMeter(torch.device("cuda"))
    except NoEnergyReading as error:
        pytest.skip(str(error))
    x = torch.rand(2048, 2048, device="cuda")

    def run():
        x @ x
        torch.cuda.synchronize()

    assert 10 < meter.measure(run, seconds=1.0).watts < 2000


def test_a_cpu_has_no_meter():
    with pytest.raises(NoEnergyReading, match="energy is measured of GPUs only, got device 'cpu'"):
        EnergyMeter(torch.device("cpu"), Nvml())
