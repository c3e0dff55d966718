"""The settings of a force, everything except the weights, as plain values that can be written to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.locate import opened, origin_at
from torchmdx.checkpoints.prepare import DTYPES
from torchmdx.checkpoints.save_load import load
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.openmm.link_atoms import LinkAtom
from torchmdx.openmm.surroundings import Surroundings
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.precisions import require_precision, saved_precision
from torchmdx.step.capture_policy import require_mode


@dataclass(frozen=True)
class ForceSettings:
    """Settings of a potential in an openmm.System.

    Attributes:
        numbers: Atomic numbers of the potential's atoms.
        atoms: Their indices, None for all of num_particles.
        checkpoint, sha256: The potential's file, or its name if it is part of torchmdx, and the file's hash, or those
            of an ensemble's members; None for a potential that was given in memory. max_force_spread (eV/Å),
            spread_file, uncertainty, max_uncertainty (eV): as for `add_potential`.
        energy_offset: eV, subtracted from the energy.
        link_atoms: Hydrogens on bonds that `atoms` cut, the last atoms of the potential.
        surroundings: Of an electrostatically embedded region, all other particles.
        devices: That share the atoms, as of `DividedStep`; `device` is then the first.
        coulomb_cutoff, coulomb, coulomb_accuracy: As for `torchmdx.load`.
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
    surroundings: Surroundings | None = None
    devices: tuple[str, ...] = ()
    coulomb_cutoff: float | None = None
    coulomb: str | None = None
    coulomb_accuracy: float | None = None
    uncertainty: bool = False
    max_uncertainty: float | None = None

    def __post_init__(self) -> None:
        require_precision(self.precision)
        if not self.skin >= 0:
            raise ValueError(f"skin must be >= 0 Å, got {self.skin}")
        if self.audit_every < 0:
            raise ValueError(f"audit_every must be >= 0 evaluations, got {self.audit_every}")
        if self.scale_parameter == "":
            raise ValueError("scale_parameter must be a name, or None for none, got ''")
        require_mode(self.mode, torch.device(self.device))
        if self.surroundings is not None:
            self._require_embeddable()

    def _require_embeddable(self) -> None:
        options = {
            "skin": self.skin, "audit_every": self.audit_every, "scale_parameter": self.scale_parameter,
            "max_force_spread": self.max_force_spread, "link_atoms": self.link_atoms, "devices": self.devices,
            "uncertainty": self.uncertainty, "max_uncertainty": self.max_uncertainty,
        }  # fmt: skip
        for name, value in options.items():
            if value:
                raise ValueError(f"electrostatic embedding has no {name}, got {value!r}")
        assert self.surroundings is not None
        if self.surroundings.periodic and not self.periodic:
            raise ValueError("electrostatic embedding in a periodic System needs periodic=True or None, got False")
        if self.atoms is None or len(self.atoms) + len(self.surroundings.charges) != self.num_particles:
            raise ValueError(
                f"surroundings must have a charge for each of the particles outside the region, got "
                f"{len(self.surroundings.charges)}"
            )

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    @property
    def particles(self) -> tuple[int, ...] | None:
        """Particles that the potential needs and acts on, None for all in their order.

        `atoms`, then the outer atoms of links, or all other particles for a region with surroundings.
        """
        if self.atoms is None:
            return None
        if self.surroundings is not None:
            inside = set(self.atoms)
            return (*self.atoms, *(index for index in range(self.num_particles) if index not in inside))
        return (*self.atoms, *(link.outer for link in self.link_atoms))

    def to_text(self) -> str:
        """As JSON, for files."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ForceSettings:
        values = json.loads(text)
        values["precision"] = saved_precision(values["precision"])
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        if (given := values.get("surroundings")) is not None:
            values["surroundings"] = Surroundings(**{**given, "charges": tuple(given["charges"])})
        values["link_atoms"] = tuple(LinkAtom(*link) for link in values.get("link_atoms", ()))
        # A file from a machine with more GPUs can be read on one with fewer or none.
        if not all(_is_here(device) for device in (values["device"], *values.get("devices", ()))):
            values |= {"device": resolved_device(None), "devices": ()}
        return cls(**values)

    @property
    def coulomb_treatment(self) -> tuple[float | None, str | None, float | None]:
        return self.coulomb_cutoff, self.coulomb, self.coulomb_accuracy

    def load_potential(self) -> Potential | Ensemble:
        """Loads the potential from the files in the settings. Raises as `require_unchanged`."""
        files = self.require_unchanged()
        source = files if isinstance(self.checkpoint, tuple) else files[0]
        return load(
            source,
            dtype=self.dtype,
            device=self.device,
            coulomb_cutoff=self.coulomb_cutoff,
            coulomb=self.coulomb,
            coulomb_accuracy=self.coulomb_accuracy,
        )

    def require_unchanged(self) -> list[Source]:
        """The files of the potential, which are on this machine: nothing is downloaded.

        Raises ValueError if one has changed, and FileNotFoundError.
        """
        return [_unchanged(path, expected) for path, expected in self._files()]

    def download(self) -> None:
        """Downloads files of the potential that are on the hub. Raises as `locate`, and for another hash."""
        for path, expected in self._files():
            opened(path, expected)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Path or name of each file, and its hash."""
        if self.checkpoint is None or self.sha256 is None:
            raise ValueError("a force can be restored only if its potential came from a checkpoint file")
        return zip(_as_tuple(self.checkpoint), _as_tuple(self.sha256), strict=True)


def _unchanged(path: str, expected: str) -> Source:
    try:
        return opened(path, expected, download=False)
    except ValueError as error:
        raise ValueError(f"the checkpoint {path!r} has changed since the force was saved: {error}") from None


def _is_here(name: str) -> bool:
    device = torch.device(name)
    return device.type != "cuda" or (device.index or 0) < torch.cuda.device_count()


def _as_tuple(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def hash_of(checkpoint: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    """SHA-256 of a checkpoint, or of each of several."""
    if isinstance(checkpoint, tuple):
        return tuple(file_hash(path) for path in checkpoint)
    return None if checkpoint is None else file_hash(checkpoint)


def file_hash(checkpoint: str | Path) -> str:
    """SHA-256 of a checkpoint, of a folder that of all its files, given by path or name. Raises FileNotFoundError."""
    return origin_at(checkpoint).sha256


def resolved_device(device: str | None) -> str:
    """The requested device, or a GPU if one is available, as text."""
    return str(choose_device(device))
