"""Released potentials, which are no part of the project: those in the folder RELEASED_POTENTIALS, or in folders within.

A potential is a file NAME.ckpt or a folder NAME with a model.json. NAME.json beside it has structures, with energies
and forces that the program it was released with computed in float64.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = os.environ.get("RELEASED_POTENTIALS")


def released(name: str) -> Path:
    """The file or folder of a potential; skips the test if there is none."""
    folder = Path(FOLDER) if FOLDER else None
    found = [path for ending in (".ckpt", "/model.json") for path in (folder.rglob(name + ending) if folder else ())]
    if not found:
        pytest.skip(f"needs the released potential {name} in the folder RELEASED_POTENTIALS")
    return found[0].parent if found[0].name == "model.json" else found[0]


def upstream(name: str) -> list[dict[str, Any]]:
    """Structures with upstream's results; skips the test if there are none."""
    path = released(name).with_name(f"{name}.json")
    if not path.is_file():
        pytest.skip(f"needs {name}.json in the folder RELEASED_POTENTIALS")
    return json.loads(path.read_text(encoding="utf-8"))
