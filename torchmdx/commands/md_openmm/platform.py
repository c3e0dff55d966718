"""Choice of the OpenMM platform of a simulation."""

from __future__ import annotations

from collections.abc import Callable

import openmm

from torchmdx.dynamics.run.settings import PotentialSettings
from torchmdx.runtime.device_guard import gpu_index
from torchmdx.runtime.devices import choose_device

_PRECISION = {"float32": "mixed", "float64": "double"}
_DEVICE_INDEX = {"CUDA": "DeviceIndex", "HIP": "DeviceIndex"}  # same numbering as in torch


def make_context(
    system: openmm.System, make_integrator: Callable[[], openmm.Integrator], potential_settings: PotentialSettings
) -> openmm.Context:
    """A Context on the requested platform, or on the fastest one that works and fits the device of the network.

    Raises:
        ValueError: For an unavailable platform, or, with the errors of OpenMM, if none works.
    """
    errors: list[str] = []
    for platform in _candidates(potential_settings):
        properties = _properties(platform, potential_settings)
        try:
            return openmm.Context(system, make_integrator(), platform, properties)
        except openmm.OpenMMException as error:
            errors.append(f"{platform.getName()}: {error}")
    raise ValueError("no OpenMM platform can run this system: " + "; ".join(errors))


def _candidates(potential_settings: PotentialSettings) -> list[openmm.Platform]:
    available = [openmm.Platform.getPlatform(index) for index in range(openmm.Platform.getNumPlatforms())]
    if potential_settings.platform is not None:
        found = [
            platform for platform in available if platform.getName().lower() == potential_settings.platform.lower()
        ]
        if not found:
            names = ", ".join(platform.getName() for platform in available)
            raise ValueError(
                f"--platform must be an available OpenMM platform ({names}), got {potential_settings.platform!r}"
            )
        return found
    if choose_device(potential_settings.device).type == "cpu":  # transfers to a GPU at every step would gain nothing
        available = [platform for platform in available if platform.getName() in ("Reference", "CPU")]
    return sorted(available, key=lambda platform: -platform.getSpeed())


def _properties(platform: openmm.Platform, potential_settings: PotentialSettings) -> dict[str, str]:
    properties = {}
    if "Precision" in platform.getPropertyNames():
        properties["Precision"] = _PRECISION[potential_settings.precision]
    device = choose_device(potential_settings.device)
    if platform.getName() in _DEVICE_INDEX and device.type == "cuda":
        properties[_DEVICE_INDEX[platform.getName()]] = str(gpu_index(device))
    return properties
