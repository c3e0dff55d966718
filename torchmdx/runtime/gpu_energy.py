"""The energy that a GPU takes, from NVIDIA's management library (NVML), which comes with the driver."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"
MILLIJOULE = 1e-3


class NoEnergyReading(RuntimeError):
    """The energy of a GPU cannot be read; says why."""


@dataclass(frozen=True)
class Consumption:
    """Of `runs` runs: energy of the whole GPU, J, and seconds."""

    joules: float
    seconds: float
    runs: int

    @property
    def joules_a_run(self) -> float:
        return self.joules / self.runs

    @property
    def watts(self) -> float:
        return self.joules / self.seconds


class EnergyMeter:
    """The energy counter of a GPU: `EnergyMeter(device).measure(work)`.

    Raises NoEnergyReading if there is no NVML, if it does not know the GPU, or if the GPU counts no energy (before
    Volta, and parts of a GPU).
    """

    def __init__(self, device: torch.device, library: Any = None) -> None:
        """library: NVML, None for that of the system."""
        if device.type != "cuda":
            raise NoEnergyReading(f"energy is measured of GPUs only, got device {str(device)!r}")
        try:
            self._nvml = ctypes.CDLL(LIBRARY) if library is None else library
        except OSError:
            raise NoEnergyReading(f"{LIBRARY}, which comes with NVIDIA's driver, was not found") from None
        self._handle = ctypes.c_void_p()
        self._call("nvmlInit_v2")
        self._call("nvmlDeviceGetHandleByUUID", uuid_of(device).encode(), ctypes.byref(self._handle))
        self.joules()

    def joules(self) -> float:
        """Energy of the GPU since the driver was loaded, J. The counter advances every few tens of milliseconds."""
        counter = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetTotalEnergyConsumption", self._handle, ctypes.byref(counter))
        return counter.value * MILLIJOULE

    def measure(self, run: Callable[[], object], seconds: float = 2.0) -> Consumption:
        """Runs, each of which waits for the GPU, for this long."""
        runs, before, start = 0, self.joules(), time.perf_counter()
        while runs == 0 or time.perf_counter() - start < seconds:
            run()
            runs += 1
        passed = time.perf_counter() - start
        return Consumption(self.joules() - before, passed, runs)

    def _call(self, name: str, *given: Any) -> None:
        try:
            status = getattr(self._nvml, name)(*given)
        except AttributeError:
            raise NoEnergyReading(f"{LIBRARY} has no {name}: the driver is too old") from None
        if status != 0:
            raise NoEnergyReading(f"{name} of {LIBRARY} failed: {self._said(status)}")

    def _said(self, status: int) -> str:
        """NVML's own words for an error."""
        try:
            describe = self._nvml.nvmlErrorString
        except AttributeError:
            return f"error {status}"
        describe.restype = ctypes.c_char_p
        text = describe(status)
        return f"error {status}" if text is None else f"{text.decode()} (error {status})"


def uuid_of(device: torch.device) -> str:
    """The name of a GPU in NVML, which numbers GPUs regardless of CUDA_VISIBLE_DEVICES."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        raise NoEnergyReading(f"torch {torch.__version__} does not tell the UUID of a GPU")
    return f"GPU-{uuid}"
