"""The data in a page, decoded without the package."""

import base64
import json
import re
from pathlib import Path

import numpy as np


def data_of(path) -> dict:
    """The JSON that the scripts of a page read."""
    text = Path(path).read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def array(text, dtype):
    return np.frombuffer(base64.b64decode(text), dtype)


def positions_of(data) -> np.ndarray:
    """Positions [F,N,3] of a page with one kind of structure."""
    number = len(array(data["kinds"][0]["numbers"], "<u1"))
    return array(data["positions"], "<i2").reshape(-1, number, 3) * data["scale"]


def distances(positions) -> np.ndarray:
    return np.linalg.norm(positions[..., :, None, :] - positions[..., None, :, :], axis=-1)
