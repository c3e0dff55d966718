"""Reads TensorNet and TensorNet2 from torchmd-net checkpoints of all versions."""

from __future__ import annotations

import torch

from torchmdx.checkpoints.formats.content import kind_of
from torchmdx.checkpoints.formats.reading import Reading, Report
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.formats.torchmdnet.container import content_of
from torchmdx.checkpoints.formats.torchmdnet.priors import read_priors, read_references
from torchmdx.checkpoints.formats.torchmdnet.settings import read_config
from torchmdx.checkpoints.formats.torchmdnet.weights import Remaining, arrange_rows, translate
from torchmdx.models.potential import Potential
from torchmdx.models.skeleton import require_sizes

ENDINGS = (".ckpt", ".pt", ".pth")


def recognizes(source: Source) -> bool:
    """Whether a file has the format of torch.save: by its first bytes, else by its ending."""
    data = source.data
    return data.startswith(b"PK\x03\x04") or (source.path.suffix in ENDINGS and kind_of(data) is None)


def read(source: Source) -> Reading:
    """The potential in a torchmd-net checkpoint, in the dtype it was saved in, and a report on what was read.

    Raises:
        ValueError: For a file that is damaged or not a torchmd-net checkpoint.
        UnsupportedCheckpoint: Naming the key, for an option or prior that torchmdx does not have.
    """
    content = content_of(source)
    report = Report(content.origin, content.sha256)
    state = Remaining(content, report)
    config = read_config(content, report, state.num_head_layers())
    tensors = translate(state, config, content.options)
    scale = tensors["scale"]
    priors = read_priors(content, state, scale.item() if scale.ndim == 0 else 1.0)  # another shape is refused below
    zeros = torch.zeros(config.max_z + 1, dtype=torch.float64, device="cpu")
    tensors["reference_energies"] = read_references(content, state, zeros, source.total_energy)
    state.require_nothing_left()
    require_sizes(config, priors, tensors, repr(content.origin))
    potential = Potential(config, priors)
    report.read.append(f"{state.num_tensors} tensors")
    potential.fill(tensors, repr(content.origin))
    arrange_rows(potential, content.options, state.old_names, report)
    return Reading(potential, report)
