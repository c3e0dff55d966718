"""The parameters of the ASE calculator: which can be changed, and errors for others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import torch

from torchmdx.runtime.devices import choose_device
from torchmdx.step.divided_step import checked_devices

# Parameters that `Calculator.set` changes, and those for which a new calculator is needed.
CHANGEABLE = ("charge", "mode", "max_force_spread", "spread_file")
FIXED = ("potential", "dtype", "device", "devices")


def require_changeable(names: Iterable[str]) -> None:
    """Raises TypeError for a name that is no parameter, ValueError for a parameter that cannot be changed."""
    for name in names:
        if name in FIXED:
            raise ValueError(
                f"{name} can't be changed by set, which takes {', '.join(CHANGEABLE)}: make a new torchmdx.Calculator"
            )
        if name not in CHANGEABLE:
            near = difflib.get_close_matches(str(name), (*CHANGEABLE, *FIXED), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"parameter must be one of {', '.join(CHANGEABLE)}, got {name!r}{hint}")


def chosen_devices(
    device: torch.device | str | None, devices: Sequence[torch.device | str] | None, mode: str
) -> tuple[torch.device, list[str] | None]:
    """(device of the potential, names of several devices that share a structure or None).

    Raises ValueError if both are given, for a device that does not exist, and as `checked_devices`.
    """
    if devices is None:
        return choose_device(device), None
    if device is not None:
        raise ValueError(f"device or devices can be given, not both, got {str(device)!r} and {devices!r}")
    found = checked_devices(devices, mode)
    return found[0], [str(each) for each in found]
