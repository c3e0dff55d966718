"""Reads TensorNet and TensorNet2 from torchmd-net checkpoints of all versions."""

from __future__ import annotations

from pathlib import Path

import torch

from torchmdx.models.potential import Potential
from torchmdx.models.skeleton import require_sizes
from torchmdx.runtime.damaged_file import naming
from torchmdx.torchmdnet.container import Content, read_bytes, read_file
from torchmdx.torchmdnet.priors import read_priors, read_references
from torchmdx.torchmdnet.report import Reading, Report
from torchmdx.torchmdnet.settings import read_config
from torchmdx.torchmdnet.weights import Remaining, arrange_rows, translate


def read_torchmdnet(path: Path, *, total_energy: bool = False) -> Reading:
    """The potential in a torchmd-net checkpoint, in the dtype it was saved in, and a report on what was read.

    total_energy: also add reference energies that the file contains but disables (`remove_ref_energy`).
    Raises ValueError for a file that is damaged or not a torchmd-net checkpoint, and UnsupportedCheckpoint, naming the
    key, for an option or prior that torchmdx does not have.
    """
    with naming(path):
        return _read(read_file(path), total_energy)


def read_torchmdnet_bytes(data: bytes, origin: str, *, total_energy: bool = False) -> Reading:
    """As `read_torchmdnet`, from the content of a file. origin: its name in messages."""
    with naming(origin):
        return _read(read_bytes(data, origin), total_energy)


def _read(content: Content, total_energy: bool) -> Reading:
    report = Report(content.origin, content.sha256)
    state = Remaining(content, report)
    config = read_config(content, report, state.num_head_layers())
    tensors = translate(state, config, content.options)
    scale = tensors["scale"]
    priors = read_priors(content, state, scale.item() if scale.ndim == 0 else 1.0)  # another shape is refused below
    zeros = torch.zeros(config.max_z + 1, dtype=torch.float64, device="cpu")
    tensors["reference_energies"] = read_references(content, state, zeros, total_energy)
    state.require_nothing_left()
    require_sizes(config, priors, tensors, repr(content.origin))
    potential = Potential(config, priors)
    report.read.append(f"{state.num_tensors} tensors")
    potential.fill(tensors, repr(content.origin))
    arrange_rows(potential, content.options, state.old_names, report)
    return Reading(potential, report)
