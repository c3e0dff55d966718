"""The settings of a force, everything except the weights, as plain values that can be written to a file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from torchmdx.checkpoints.locate import locate, weights_file
from torchmdx.checkpoints.prepare import DTYPES
from torchmdx.checkpoints.save_load import load
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.openmm_force.link_atoms import LinkAtom
from torchmdx.runtime.devices import choose_device
from torchmdx.step.capture_policy import require_mode


@dataclass(frozen=True)
class ForceSettings:
    """Settings of a potential in an openmm.System.

    numbers: atomic numbers of the potential's atoms. atoms: their indices, None for all of num_particles.
    checkpoint, sha256: the potential's file, or its name if it is part of torchmdx, and the file's hash, or those of an
    ensemble's members; None for a potential that was given in memory. max_force_spread (eV/Å), spread_file: as for
    `torchmdx.Calculator`. energy_offset: eV, subtracted from the energy. link_atoms: hydrogens on bonds that `atoms`
    cut, the last atoms of the potential.
    """

    numbers: tuple[int, ...]
    atoms: tuple[int, ...] | None
    num_particles: int
    charge: float
    periodic: bool
    precision: str
    mode: str
    device: str
    skin: float
    audit_every: int
    scale_parameter: str | None
    checkpoint: str | tuple[str, ...] | None = None
    sha256: str | tuple[str, ...] | None = None
    max_force_spread: float | None = None
    spread_file: str | None = None
    energy_offset: float = 0.0
    link_atoms: tuple[LinkAtom, ...] = ()

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise ValueError(f"precision must be one of {', '.join(DTYPES)}, got {self.precision!r}")
        if not self.skin >= 0:
            raise ValueError(f"skin must be >= 0 Å, got {self.skin}")
        if self.audit_every < 0:
            raise ValueError(f"audit_every must be >= 0 evaluations, got {self.audit_every}")
        if self.scale_parameter == "":
            raise ValueError("scale_parameter must be a name, or None for none, got ''")
        require_mode(self.mode, torch.device(self.device))

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    @property
    def particles(self) -> tuple[int, ...] | None:
        """Particles that the potential needs and acts on: `atoms`, then the outer atoms of links; None for all."""
        return None if self.atoms is None else (*self.atoms, *(link.outer for link in self.link_atoms))

    def to_text(self) -> str:
        """As JSON, for files."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ForceSettings:
        values = json.loads(text)
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        values["link_atoms"] = tuple(LinkAtom(*link) for link in values.get("link_atoms", ()))
        # A file from a machine with more GPUs can be read on one with fewer or none.
        device = torch.device(values["device"])
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            values["device"] = resolved_device(None)
        return cls(**values)

    def load_potential(self) -> Potential | Ensemble:
        """Loads the potential from the files in the settings. Raises ValueError if a file has changed."""
        self.require_unchanged()
        assert self.checkpoint is not None
        return load(self.checkpoint, dtype=self.dtype, device=self.device)

    def require_unchanged(self) -> None:
        """Raises ValueError if a file of the potential has changed, and FileNotFoundError."""
        if self.checkpoint is None or self.sha256 is None:
            raise ValueError("a force can be restored only if its potential came from a checkpoint file")
        for path, expected in zip(_as_tuple(self.checkpoint), _as_tuple(self.sha256), strict=True):
            if (found := file_hash(path)) != expected:
                raise ValueError(
                    f"the checkpoint {path!r} has changed since the force was saved: its SHA-256 must be {expected}, "
                    f"got {found}"
                )


def _as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def hash_of(checkpoint: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    """SHA-256 of a checkpoint, or of each of several."""
    if isinstance(checkpoint, tuple):
        return tuple(file_hash(path) for path in checkpoint)
    return None if checkpoint is None else file_hash(checkpoint)


def file_hash(checkpoint: str | Path) -> str:
    """SHA-256 of a checkpoint, given by its path or name. Raises FileNotFoundError."""
    with weights_file(locate(checkpoint)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolved_device(device: str | None) -> str:
    """The requested device, or a GPU if one is available, as text."""
    return str(choose_device(device))
