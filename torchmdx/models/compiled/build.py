"""Compiles messages.c once for this machine and keeps the library in the user's cache directory."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("messages.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared", "-std=c11", "-w")
BOTH_TYPES = f"""\
#define NAME(f) f##_float
#define REAL float
#include "{SOURCE.name}"
#undef NAME
#undef REAL
#define NAME(f) f##_double
#define REAL double
#define PART_END PART_END_DOUBLE
#define PART_START PART_START_DOUBLE
#include "{SOURCE.name}"
"""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None, with one line in the log, where there is no working C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("no C compiler found (cc, gcc, clang or $CC): the CPU runs slower kernels in torch")
        return None
    # The processor is part of the key: -march=native code from another machine's home directory may not run here.
    parts = (SOURCE.read_text(), BOTH_TYPES, " ".join(FLAGS), compiler, platform.machine(), _processor())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = cache_directory() / f"messages-{key}.so"
    try:
        if not path.exists():
            _compile(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        message = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        log.warning("%s could not compile %s, the CPU runs slower kernels in torch: %s", compiler, SOURCE, message)
        return None


def cache_directory() -> Path:
    """Where compiled code is kept: $TORCHMDX_CACHE, else the user's cache directory."""
    if "TORCHMDX_CACHE" in os.environ:
        return Path(os.environ["TORCHMDX_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchmdx"


def _compile(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        command = [compiler, *FLAGS, "-I", str(SOURCE.parent), "-x", "c", "-", "-o", str(made), "-lm"]
        subprocess.run(command, input=BOTH_TYPES, text=True, check=True, capture_output=True)
        os.replace(made, path)  # several processes may compile at once; each leaves a whole file


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
