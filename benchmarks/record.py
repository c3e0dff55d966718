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


def write(name: str, rows: list[dict[str, Any]]) -> Path:
    """benchmarks/results/NAME.json, one row a line."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    path.write_text(f'{{"environment": {json.dumps(environment())},\n "rows": [\n{lines}\n]}}\n')
    return path
