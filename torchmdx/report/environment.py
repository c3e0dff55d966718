"""The environment of a result: versions, device, commit, command."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

import torchmdx
from torchmdx.runtime.wording import counted


def environment(device: torch.device | str) -> dict[str, str]:
    """Names and values, in the order in which people ask for them."""
    device = torch.device(device)
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "torchmdx": torchmdx.__version__,
    }
    if (known := commit()) is not None:
        found["commit"] = known
    found["Python"] = platform.python_version()
    found["torch"] = torch.__version__ + (f", CUDA {torch.version.cuda}" if torch.version.cuda else ", CPU build")
    found["numpy"] = np.__version__
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["device"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    else:
        found["device"] = f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    found["processor"] = f"{_processor()}, {counted(os.cpu_count() or 1, 'core')}"
    found["platform"] = platform.platform()
    return found


def commit() -> str | None:
    """Commit of the checkout that torchmdx runs from, with "-dirty" if files are modified; None without a checkout."""
    folder = Path(torchmdx.__file__).parent
    # A virtual environment may be inside another repository: it is ours only if git tracks this file.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(folder, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, env=variables
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
