"""Checkpoints of a Context, exact and portable, and going on from one that may be damaged."""

from __future__ import annotations

import hashlib

import numpy as np
import openmm

# Behind OpenMM's own bytes, which end before it: OpenMM reads damaged ones as numbers, or crashes.
SEAL = b"\ntorchmdx SHA-256\n"
SEAL_BYTES = len(SEAL) + hashlib.sha256().digest_size


def sealed(exact: bytes) -> bytes:
    """An exact checkpoint with its checksum behind it."""
    return exact + SEAL + hashlib.sha256(exact).digest()


def unsealed(data: bytes) -> bytes:
    """What `sealed` was given. Raises ValueError for anything else."""
    exact, seal, digest = (
        data[:-SEAL_BYTES],
        data[-SEAL_BYTES : -SEAL_BYTES + len(SEAL)],
        data[-SEAL_BYTES + len(SEAL) :],
    )
    if seal != SEAL:
        raise ValueError("it is damaged, or of a torchmdx that kept no checksum")
    if hashlib.sha256(exact).digest() != digest:
        raise ValueError("it is damaged: its checksum is another")
    return exact


def restore(context: openmm.Context, exact: bytes | None, portable: str | None) -> str | None:
    """Continues from a checkpoint; a line on why the exact one could not be used, or None.

    Raises ValueError when neither fits; the context is then not to be used.
    """
    reason = "it is missing"
    if exact is not None:
        try:
            context.loadCheckpoint(unsealed(exact))
            return None
        except (openmm.OpenMMException, ValueError) as error:
            reason = str(error)
    if portable is None:
        raise ValueError(f"the checkpoint must come from this machine and platform: {reason}")
    try:
        state = openmm.XmlSerializer.deserialize(portable)
        if not isinstance(state, openmm.State):
            raise ValueError(f"it holds a {type(state).__name__}")
        _require_finite(state, context.getSystem().getNumParticles())
        context.setState(state)
    except (openmm.OpenMMException, ValueError, TypeError) as error:
        raise ValueError(f"the state in the .xml file can't be read: {error}") from error
    return reason


def _require_finite(state: openmm.State, num_atoms: int) -> None:
    for name, values in (
        ("positions", state.getPositions(asNumpy=True)._value),
        ("velocities", state.getVelocities(asNumpy=True)._value),
        ("box vectors", state.getPeriodicBoxVectors(asNumpy=True)._value),
    ):
        if name != "box vectors" and np.shape(values) != (num_atoms, 3):
            raise ValueError(f"{name} must be of {num_atoms} atoms, got {len(values)}")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite")
    if state.getStepCount() < 0:
        raise ValueError(f"the step must be >= 0, got {state.getStepCount()}")
