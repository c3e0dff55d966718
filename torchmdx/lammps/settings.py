"""The arguments of pair_style torchmdx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch

from torchmdx.runtime.precisions import require_precision

USAGE = (
    "pair_style torchmdx MODEL [precision P] [device D] [charge Q] [coulomb C] [coulomb_cutoff R] [coulomb_accuracy A]"
)
UNITS = {"charge": "elementary charges", "coulomb_cutoff": "Å", "coulomb_accuracy": "root mean square forces"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """model: a file or the name of a potential. device: None for a GPU if there is one. charge: of the whole system.

    coulomb, coulomb_cutoff, coulomb_accuracy: as for `torchmdx.load`.
    """

    model: str
    precision: str = "float32"
    device: str | None = None
    charge: float = 0.0
    coulomb: str | None = None
    coulomb_cutoff: float | None = None
    coulomb_accuracy: float | None = None

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        """Raises ValueError for arguments that LAMMPS's input must not have."""
        model, *others = arguments
        if len(others) % 2:
            raise ValueError(f"{USAGE}: {others[-1]!r} has no value")
        if len(set(others[::2])) < len(others) // 2:
            raise ValueError(f"{USAGE}: each option can be given once, got {' '.join(others)}")
        values: dict[str, Any] = dict(zip(others[::2], others[1::2], strict=True))
        if unknown := set(values) - {field.name for field in fields(cls) if field.name != "model"}:
            raise ValueError(f"{USAGE}: got the option {sorted(unknown)[0]!r}")
        precision = require_precision(values.pop("precision", "float32"))
        for name, unit in UNITS.items():
            if name in values:
                values[name] = _number(name, values[name], unit)
        return cls(model=model, precision=precision, **values)

    def device_of(self, local_rank: int) -> str | None:
        """The device of a process: with several GPUs, "cuda" is a different one for each process of a machine."""
        wanted = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if wanted != "cuda" or not (count := torch.cuda.device_count()):
            return wanted
        return f"cuda:{local_rank % count}"


def _number(name: str, value: str, unit: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a number of {unit}, got {value!r}")
    return found
