"""Which OpenMM platform runs a simulation."""

from __future__ import annotations

from collections.abc import Callable

import openmm

from torchmdx.md.settings import Evaluation
from torchmdx.runtime.device_guard import gpu_index
from torchmdx.runtime.devices import choose_device

_PRECISION = {"float32": "mixed", "tf32": "mixed", "bfloat16": "mixed", "float64": "double"}
_DEVICE_INDEX = {"CUDA": "DeviceIndex", "HIP": "DeviceIndex"}  # numbered as torch numbers them


def make_context(
    system: openmm.System, make_integrator: Callable[[], openmm.Integrator], evaluation: Evaluation
) -> openmm.Context:
    """A Context on the platform asked for, else on the fastest that works here and suits the network's device.

    Raises ValueError for a platform that is not there, and what OpenMM raises when none of them works.
    """
    errors: list[str] = []
    for platform in _candidates(evaluation):
        properties = _properties(platform, evaluation)
        try:
            return openmm.Context(system, make_integrator(), platform, properties)
        except openmm.OpenMMException as error:
            errors.append(f"{platform.getName()}: {error}")
    raise ValueError("OpenMM has no platform that can run this; " + "; ".join(errors))


def _candidates(evaluation: Evaluation) -> list[openmm.Platform]:
    there = [openmm.Platform.getPlatform(index) for index in range(openmm.Platform.getNumPlatforms())]
    if evaluation.platform is not None:
        found = [platform for platform in there if platform.getName().lower() == evaluation.platform.lower()]
        if not found:
            names = ", ".join(platform.getName() for platform in there)
            raise ValueError(f"--platform must be one that OpenMM has here ({names}), got {evaluation.platform!r}")
        return found
    if choose_device(evaluation.device).type == "cpu":  # a round trip to a GPU at every step would gain nothing
        there = [platform for platform in there if platform.getName() in ("Reference", "CPU")]
    return sorted(there, key=lambda platform: -platform.getSpeed())


def _properties(platform: openmm.Platform, evaluation: Evaluation) -> dict[str, str]:
    properties = {}
    if "Precision" in platform.getPropertyNames():
        properties["Precision"] = _PRECISION[evaluation.precision]
    device = choose_device(evaluation.device)
    if platform.getName() in _DEVICE_INDEX and device.type == "cuda":
        properties[_DEVICE_INDEX[platform.getName()]] = str(gpu_index(device))
    return properties
