"""Saving and loading potentials, one or several, in any format.

Loading never runs code from a file: `formats/table` lists the formats, whose readers create only tensors, numbers and
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import torch

from torchmdx.checkpoints.formats import ensemble, own, table
from torchmdx.checkpoints.formats.reading import Reading, Report
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.locate import is_run_folder, locate, opened, split_head, with_head
from torchmdx.checkpoints.run_folder import TOGETHER, files_in
from torchmdx.models.coulomb_cutoff import with_coulomb_cutoff_of_one
from torchmdx.models.ensemble import UNCALIBRATED, Ensemble, require_alike
from torchmdx.models.potential import Potential
from torchmdx.models.uncertainty import Uncertainty
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.isolation import isolated

# Where one or several potentials are.
Sources = str | Path | Source | Sequence[str | Path | Source]
# The name of `locate` in version 0.1.
located = locate


def save(potential: Potential | Ensemble, path: str | Path, *, report: Report | None = None) -> None:
    """Writes a potential, or an ensemble, to `path` (.safetensors), atomically.

    Args:
        report: How a potential was read from another format; it is stored in the file, with energies that loading
            checks.
    """
    if isinstance(potential, Ensemble):
        if report is not None:
            raise ValueError("report must be None for an ensemble, got the report of a single potential")
        content = ensemble.to_bytes(list(potential), potential.spread_factors)
    else:
        content = own.to_bytes(potential, report)
    write_whole(Path(path), content)


def with_uncertainty_in(source: str | Path, uncertainty: Uncertainty, head: str | None = None) -> bytes | None:
    """The content of a file of torchmdx with this uncertainty, all else as it is; None for another format.

    Args:
        head: Of a file with several; None: the one in `source`, else the default.
    """
    file = opened(with_head(source, head))
    return own.with_uncertainty(file, uncertainty) if own.recognizes(file) else None


@isolated
def load(
    source: Sources | None = None,
    *,
    head: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    sha256: str | None = None,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
) -> Potential | Ensemble:
    """Loads a potential from a file or folder, or by its name.

    Formats: torchmdx's own, checkpoints of torchmd-net (`.ckpt`), folders of matgl. Names are those of `torchmdx info`.

    Args:
        source: None for the default potential. A file of several potentials, a zip of checkpoints, a list of paths, or
            the folder of a training with several seeds gives an ensemble. FILE:NAME is the head NAME of a file.
        head: Of a file with several heads; None: the one in `source`, else the default of the file.
        dtype: Of the network; None keeps the file's.
        sha256: The expected hash of the file.
        coulomb: Of a potential with predicted or given charges, "ewald" sums the Coulomb energy of periodic systems
            over all images, "pme" always on a mesh, "reaction_field" truncates it, "reaction_field_everywhere" also
            that of other systems; None: as the file.
        coulomb_cutoff: Å, where it is truncated, of systems that are not periodic too if the potential truncates there;
            None: that of the file.
        coulomb_accuracy: Error of the forces of a sum over all images, relative to their root mean square.

    Raises:
        FileNotFoundError: For a missing file.
        ValueError: With the file and the reason, for a file that is damaged or is not a potential.
    """
    source = of_head(source, head)
    if sha256 is not None and not _is_single_file(source):
        raise ValueError(f"sha256 needs a single file, got {source!r}")
    file = opened(source, sha256) if _is_single_file(source) else source
    found, treatment = read_any(file), (coulomb_cutoff, coulomb, coulomb_accuracy)
    if isinstance(found, Reading):
        return _ready(with_coulomb_cutoff_of_one(found.potential, *treatment), dtype, device)
    if len(found) < 2 and isinstance(source, (str, Path, Source)):
        raise ValueError(f"an ensemble needs at least 2 potentials, got {len(found)} in {str(source)!r}")
    readings = [with_coulomb_cutoff_of_one(reading.potential, *treatment) for reading in found]
    potentials = [_ready(potential, dtype, device) for potential in readings]
    return Ensemble(potentials, [reading.report.source for reading in found], spread_factors(file))


@isolated
def load_one(
    path: str | Path | Source | None = None,
    *,
    head: str | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    sha256: str | None = None,
    coulomb_cutoff: float | None = None,
    coulomb: str | None = None,
    coulomb_accuracy: float | None = None,
) -> Potential:
    """As `load`, but raises ValueError for an ensemble."""
    path = path if isinstance(path, Source) else with_head(path, head)
    found = with_coulomb_cutoff_of_one(read(path, sha256=sha256).potential, coulomb_cutoff, coulomb, coulomb_accuracy)
    return _ready(found, dtype, device)


@isolated
def load_ensemble(
    source: Sources, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> list[Potential]:
    """The members of an ensemble, as a list, from one file, a folder, or a list of paths, as for `load`.

    Raises:
        ValueError: For an empty list, and for members with different cutoffs or elements.
    """
    return [_ready(reading.potential, dtype, device) for reading in read_ensemble(source)]


def read(path: str | Path | Source | None = None, *, sha256: str | None = None, total_energy: bool = False) -> Reading:
    """As `load_one`, with a report on what was read; the potential keeps the dtype of the file.

    Args:
        total_energy: Add the reference energies that a torchmd-net checkpoint contains but disables
            (`remove_ref_energy`).
    """
    source = opened(path, sha256, total_energy=total_energy)
    several = table.ensemble_format_of(source)
    if several is not None:
        raise ValueError(f"a single potential is needed, but {source.origin!r} {several.described(source)}")
    return table.read_one(source)


def read_ensemble(source: Sources, *, total_energy: bool = False) -> list[Reading]:
    """As `load_ensemble`, with reports."""
    if isinstance(source, (str, Path)) and is_run_folder(source):
        folder, head = split_head(source)
        source = [with_head(file, head) or file for file in files_in(Path(folder or source))]
    if isinstance(source, (str, Path, Source)):
        readings = table.read_several(opened(source, total_energy=total_energy))
    else:
        readings = [read(path, total_energy=total_energy) for path in source]
    if not readings:
        raise ValueError("an ensemble needs at least one checkpoint, got none")
    require_alike([reading.potential for reading in readings], [reading.report.source for reading in readings])
    return readings


def read_any(source: Sources | None = None, *, total_energy: bool = False) -> Reading | list[Reading]:
    """As `load`, with a report on each potential; of an ensemble a list."""
    if not _is_single_file(source):
        assert source is not None
        return read_ensemble(source, total_energy=total_energy)
    file = opened(source, total_energy=total_energy)
    if table.ensemble_format_of(file) is None:
        return table.read_one(file)
    return read_ensemble(file)


def of_head(source: Sources | None, head: str | None) -> Sources | None:
    """The source with a head, which each of several files has to have."""
    if head is None:
        return source
    if isinstance(source, Source):
        return replace(source, head=head)
    if source is None or isinstance(source, (str, Path)):
        return with_head(source, head)
    return [replace(one, head=head) if isinstance(one, Source) else with_head(one, head) or one for one in source]


def _is_single_file(source: Sources | None) -> TypeGuard[str | Path | Source | None]:
    return (
        source is None or isinstance(source, Source) or (isinstance(source, (str, Path)) and not is_run_folder(source))
    )


def spread_factors(source: Sources | None) -> tuple[float, float]:
    """Those of a file of several potentials, or of the one that a training with several seeds wrote into its folder."""
    if isinstance(source, (str, Path)):
        folder, head = split_head(source)
        together = Path(folder or source) / TOGETHER
        if not together.is_file():
            return UNCALIBRATED
        source = opened(with_head(together, head))
    return ensemble.spread_factors(source, table.head_of(source)) if isinstance(source, Source) else UNCALIBRATED


def _ready(potential: Potential, dtype: torch.dtype | None, device: torch.device | str) -> Potential:
    return potential.to(device=device, dtype=dtype).eval().requires_grad_(False)
