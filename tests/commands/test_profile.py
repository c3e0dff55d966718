import json
from types import SimpleNamespace

import pytest
import torch
from ase.build import molecule
from ase.io import write

from torchmdx.commands import profile
from torchmdx.commands.cli import main
from torchmdx.runtime import gpu_energy


@pytest.fixture
def checkpoint(data) -> str:
    return str(data / "tensornet.safetensors")


@pytest.mark.nightly
def test_profile_writes_a_trace_and_prints_the_most_expensive_kernels(tmp_path, capsys, checkpoint):
    write(tmp_path / "ethanol.xyz", molecule("CH3CH2OH"))
    trace = tmp_path / "trace.json"
    command = ["profile", str(tmp_path / "ethanol.xyz"), "--model", checkpoint, "--device", "cpu", "-o", str(trace)]
    assert main(command) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[1] == "100%"
    shares = [float(line.split()[1].rstrip("%")) for line in lines[-11:-1]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5
    assert main(command) == 2
    assert f"must not exist, got {trace}; --overwrite replaces them" in capsys.readouterr().err


def test_a_gpu_idles_between_kernels():
    assert profile.idle_share([]) == 0
    assert profile.idle_share([(10, 20)]) == 0
    assert profile.idle_share([(10, 20), (30, 40)]) == pytest.approx(1 / 3)
    # Out of order, overlapping, and one within another.
    assert profile.idle_share([(6, 8), (0, 4), (1, 2), (3, 5), (9, 10)]) == pytest.approx(0.2)


def test_profile_prints_how_a_gpu_is_used(monkeypatch, capsys):
    class Meter:
        def __init__(self, device):
            self.device = device

        def measure(self, run):
            run()
            return gpu_energy.Consumption(joules=10.0, seconds=2.0, runs=1000)

    kernel, host = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    spans = [(kernel, 0, 4), (host, 0, 9), (kernel, 6, 8)]
    events = [SimpleNamespace(device_type=kind, time_range=SimpleNamespace(start=a, end=b)) for kind, a, b in spans]
    found, ran = SimpleNamespace(events=lambda: events), []
    profile._print_use_of_gpu(found, lambda: ran.append(1), torch.device("cpu"))
    assert capsys.readouterr().out.splitlines() == [
        "the GPU idles for 25.0% of the time, under the profiler",
        "energy was not measured: energy is measured of GPUs only, got device 'cpu'",
    ]
    monkeypatch.setattr(gpu_energy, "EnergyMeter", Meter)
    profile._print_use_of_gpu(found, lambda: ran.append(1), torch.device("cuda"))
    assert ran == [1]
    assert capsys.readouterr().out.splitlines()[1] == "10 mJ per step, 5 W; 10000 J/ns with a time step of 1 fs"
