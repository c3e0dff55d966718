"""What identifies a potential: a digest of its configuration and its weights."""

from __future__ import annotations

import hashlib

import torch

from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.origin import Origin
from torchmdx.models.potential import Potential


def digest_of(potential: Potential | Ensemble) -> str:
    """The first 16 hexadecimal digits of a SHA-256 of configuration, priors, weights and constants, in their dtypes."""
    digest = hashlib.sha256()
    for member in members_of(potential):
        digest.update(f"{member.config!r} {member.prior_configs!r}".encode())
        for name, value in sorted(member.state_dict().items()):
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def origin_of(potential: Potential | Ensemble) -> Origin:
    """The files that it was loaded from; of one in memory, the name on its card and its digest."""
    return Origin.together(
        [
            member.origin or Origin(member.card.name or "in memory", digest_of(member))
            for member in members_of(potential)
        ]
    )
