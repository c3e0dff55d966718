"""A reader of DCD files, independent of the writer."""

import struct
from pathlib import Path

import numpy as np


def read_dcd(path: Path) -> dict[str, np.ndarray | int | float]:
    """Header fields, frames [F,N,3] Å, and for periodic files cells [F,6] as stored: a, cos γ, b, cos β, cos α, c."""
    records, data = [], path.read_bytes()
    while data:
        (length,) = struct.unpack_from("<i", data)
        assert struct.unpack_from("<i", data, 4 + length) == (length,)
        records.append(data[4 : 4 + length])
        data = data[8 + length :]
    control, _, atoms, *body = records
    assert control[:4] == b"CORD"
    numbers = struct.unpack("<9if10i", control[4:])
    periodic = bool(numbers[10])
    per_frame = 3 + periodic
    assert len(body) == numbers[0] * per_frame
    coordinates = [record for index, record in enumerate(body) if not periodic or index % per_frame]
    frames = np.array([np.frombuffer(record, "<f4") for record in coordinates]).reshape(numbers[0], 3, -1)
    assert frames.shape[2] == struct.unpack("<i", atoms)[0]
    cells = np.array([struct.unpack("<6d", record) for record in body[::per_frame]]) if periodic else None
    return {
        "frames": frames.transpose(0, 2, 1),
        "cells": cells,
        "first": numbers[1],
        "interval": numbers[2],
        "last": numbers[3],
        "timestep": numbers[9] * 48.88821,  # fs
    }
