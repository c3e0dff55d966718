"""Checkpoints of OpenMM: an exact and a portable one, either of which may be damaged when a Context is restored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import openmm

from torchmdx.dynamics.run.files import RunFiles
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.files import write_whole

# Appended to the bytes of OpenMM, which reads damaged ones as numbers, or crashes.
SEAL = b"\ntorchmdx SHA-256\n"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size


@dataclass(frozen=True)
class Checkpoint:
    """A state to restart from: a binary checkpoint of OpenMM for the same machine, and a State for any other."""

    step: int
    exact: bytes
    state: openmm.State

    @property
    def portable(self) -> str:
        return str(openmm.XmlSerializer.serialize(self.state))


def write_checkpoint(files: RunFiles, checkpoint: Checkpoint) -> None:
    """Replaces both files, each atomically: they stay complete even if the process is killed."""
    write_whole(files.path(".xml"), checkpoint.portable.encode())
    write_whole(files.path(".chk"), sealed(checkpoint.exact))


def read_checkpoint(files: RunFiles) -> tuple[bytes | None, str | None]:
    """The exact and the portable checkpoint, None for a missing one. Raises FileNotFoundError without either."""
    exact, portable = files.path(".chk"), files.path(".xml")
    if not (exact.is_file() or portable.is_file()):
        raise FileNotFoundError(f"--restart needs a checkpoint, but {str(exact)!r} does not exist")
    with naming(portable):
        text = portable.read_text() if portable.is_file() else None
    return exact.read_bytes() if exact.is_file() else None, text


def sealed(exact: bytes) -> bytes:
    """An exact checkpoint with its checksum appended."""
    return exact + SEAL + hashlib.sha256(exact).digest()


def unsealed(data: bytes) -> bytes:
    """The checkpoint without checksum. Raises ValueError if it is damaged or has none."""
    exact, seal, digest = (
        data[:-SEAL_BYTES],
        data[-SEAL_BYTES : -SEAL_BYTES + len(SEAL)],
        data[-SEAL_BYTES + len(SEAL) :],
    )
    if seal != SEAL:
        raise ValueError("it is damaged or has no checksum")
    if hashlib.sha256(exact).digest() != digest:
        raise ValueError("it is damaged: its checksum does not match")
    return exact


def restore(context: openmm.Context, exact: bytes | None, portable: str | None) -> str | None:
    """Restores a checkpoint; returns why the exact one could not be used, or None.

    Raises:
        ValueError: If neither can be used; the context is invalid then.
    """
    reason = "it is missing"
    if exact is not None:
        try:
            context.loadCheckpoint(unsealed(exact))
            return None
        except (openmm.OpenMMException, ValueError) as error:
            reason = str(error)
    if portable is None:
        raise ValueError(f"the checkpoint could not be loaded, and there is no .xml file: {reason}")
    try:
        state = openmm.XmlSerializer.deserialize(portable)
        if not isinstance(state, openmm.State):
            raise ValueError(f"it holds a {type(state).__name__}")
        _require_finite(state, context.getSystem().getNumParticles())
        context.setState(state)
    except (openmm.OpenMMException, ValueError, TypeError) as error:
        raise ValueError(f"the state in the .xml file could not be restored: {error}") from error
    return reason


def _require_finite(state: openmm.State, num_atoms: int) -> None:
    for name, values in (
        ("positions", state.getPositions(asNumpy=True)._value),
        ("velocities", state.getVelocities(asNumpy=True)._value),
        ("box vectors", state.getPeriodicBoxVectors(asNumpy=True)._value),
    ):
        if name != "box vectors" and np.shape(values) != (num_atoms, 3):
            raise ValueError(f"{name} must have {num_atoms} atoms, got {len(values)}")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite")
    if state.getStepCount() < 0:
        raise ValueError(f"the step must be >= 0, got {state.getStepCount()}")
