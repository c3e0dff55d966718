"""Compiles the C files here once for this machine and keeps the library in the user's cache directory."""

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

FOLDER = Path(__file__).parent
SOURCES = ("rows.c", "messages.c", "forms.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared", "-std=c11", "-w")
SLICE = 32  # channels that messages.c takes at a time
PARTS = f"""\
#define SLICE {SLICE}
static const int PART_END[3] = {{1, 4, 9}};
static const int PART_START[3] = {{0, 1, 4}};
"""
BOTH_TYPES = f'{PARTS}#include "{SOURCES[0]}"\n' + "".join(
    f"#define NAME(f) f##_{real}\n#define REAL {real}\n"
    + "".join(f'#include "{source}"\n' for source in SOURCES[1:])
    + "#undef NAME\n#undef REAL\n"
    for real in ("float", "double")
)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None, with one line in the log, where there is no working C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("no C compiler found (cc, gcc, clang or $CC): the CPU runs slower kernels in torch")
        return None
    # The processor is part of the key: -march=native code from another machine's home directory may not run here.
    texts = [(FOLDER / source).read_text() for source in SOURCES]
    parts = (*texts, BOTH_TYPES, " ".join(FLAGS), compiler, platform.machine(), _processor())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = cache_directory() / f"kernels-{key}.so"
    try:
        if not path.exists():
            _compile(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        message = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        log.warning("%s could not compile %s, the CPU runs slower kernels in torch: %s", compiler, FOLDER, message)
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
        command = [compiler, *FLAGS, "-I", str(FOLDER), "-x", "c", "-", "-o", str(made), "-lm"]
        subprocess.run(command, input=BOTH_TYPES, text=True, check=True, capture_output=True)
        os.replace(made, path)  # several processes may compile at once; each leaves a whole file


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
