"""The energy that a GPU takes for a nanosecond of dynamics, by NVIDIA's counter; the whole GPU, idle power included."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchmdx.runtime.gpu_energy import EnergyMeter, NoEnergyReading

STEPS_A_NS = 1_000_000  # of 1 fs
# Runs that are launched before the host waits: waiting for each would add the power of an idle GPU.
TOGETHER = 20


def per_ns(run: Callable[[], Any], seconds: float = 1.0, library: Any = None, steps: int = 1) -> dict[str, float]:
    """J_per_ns and watts of runs on the current GPU; empty where no energy is counted.

    Args:
        seconds: How long it runs. library: NVML, None for that of the system. steps: Steps of 1 fs in a run.
    """
    if not torch.cuda.is_available():
        return {}

    def several() -> None:
        for _ in range(TOGETHER):
            run()
        torch.cuda.synchronize()

    several()
    try:
        used = EnergyMeter(torch.device("cuda", torch.cuda.current_device()), library).measure(several, seconds)
    except NoEnergyReading as error:
        _say(str(error))
        return {}
    joules = used.joules_a_run / (TOGETHER * steps) * STEPS_A_NS
    return {"J_per_ns": round(joules, 1), "watts": round(used.watts)}


@functools.cache
def _say(why: str) -> None:
    print(f"energy is not measured: {why}", flush=True)
