"""The arguments of pair_style torchmdx."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from torchmdx.runtime.precisions import require_precision

USAGE = "pair_style torchmdx MODEL [precision P] [device D] [charge Q]"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """model: a file or the name of a potential. device: None for a GPU if there is one. charge: of the whole system."""

    model: str
    precision: str = "float32"
    device: str | None = None
    charge: float = 0.0

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Self:
        """Raises ValueError for arguments that LAMMPS's input must not have."""
        model, *others = arguments
        if len(others) % 2:
            raise ValueError(f"{USAGE}: {others[-1]!r} has no value")
        if len(set(others[::2])) < len(others) // 2:
            raise ValueError(f"{USAGE}: each option can be given once, got {' '.join(others)}")
        values = dict(zip(others[::2], others[1::2], strict=True))
        if unknown := set(values) - {"precision", "device", "charge"}:
            raise ValueError(f"{USAGE}: got the option {sorted(unknown)[0]!r}")
        precision = require_precision(values.get("precision", "float32"))
        try:
            charge = float(values.get("charge", "0"))
        except ValueError:
            charge = math.nan
        if not math.isfinite(charge):
            raise ValueError(f"charge must be a number of elementary charges, got {values['charge']!r}")
        return cls(model=model, precision=precision, device=values.get("device"), charge=charge)

    def device_of(self, local_rank: int) -> str | None:
        """The device of a process: with several GPUs, "cuda" is a different one for each process of a machine."""
        wanted = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if wanted != "cuda" or not (count := torch.cuda.device_count()):
            return wanted
        return f"cuda:{local_rank % count}"
