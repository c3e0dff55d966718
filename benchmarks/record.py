"""Writes results together with device, versions and commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).with_name("results")


def environment() -> dict[str, Any]:
    """Device, versions and commit."""
    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        pass
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    else:
        found["device"] = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    if "BENCHMARK_COMMIT" in os.environ:  # a copy of the files without git history
        return found | {"commit": os.environ["BENCHMARK_COMMIT"]}
    command = ["git", "describe", "--always", "--dirty"]
    asked = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    found["commit"] = asked.stdout.strip() or "unknown"
    return found


def read(name: str) -> dict[str, Any]:
    """The environment and rows of benchmarks/results/NAME.json; empty if there is none."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {"environment": {}, "rows": []}


def current(name: str) -> list[dict[str, Any]]:
    """The rows of a record that were measured with this commit and device, and have no error."""
    found, here = read(name), environment()
    if any(found["environment"].get(key) != here[key] for key in ("commit", "device")):
        return []
    return [row for row in found["rows"] if not {"commit", "device", "error"} & set(row)]


def update(name: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> Path:
    """Replaces the rows of a record that have the same values of `keys`; the others stay.

    Those that were measured with another commit or device than this get it as a key of their own.
    """
    found, here = read(name), environment()
    old, new = found["rows"], {tuple(row.get(key) for key in keys) for row in rows}
    replaced = [tuple(row.get(key) for key in keys) in new for row in old]
    for row in old:
        for key in ("commit", "device"):
            measured = row.pop(key, found["environment"].get(key))
            row |= {} if measured == here[key] else {key: measured}
    first = replaced.index(True) if any(replaced) else len(old)
    kept = [(k, row) for k, row in enumerate(old) if not replaced[k]]
    return write(name, [*(r for k, r in kept if k < first), *rows, *(r for k, r in kept if k > first)])


def write(name: str, rows: list[dict[str, Any]]) -> Path:
    """benchmarks/results/NAME.json, one row a line."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(f'{{"environment": {json.dumps(environment())},\n "rows": [\n{lines}\n]}}\n')
    return path
