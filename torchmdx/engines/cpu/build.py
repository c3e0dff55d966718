"""Compiles the C files once for this machine and keeps the library in the user's cache directory."""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
from pathlib import Path

from torchmdx.runtime.c_library import c_library
from torchmdx.runtime.compile_cache import CompileError, find_compiler, load_library, run_compiler

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = ("threads.c", "messages.c", "pair_forms.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp-simd", "-fPIC", "-shared", "-std=c11", "-w")
SLICE = 32  # channels that messages.c processes at a time
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
    """The compiled kernels; None, with one line in the log, if they cannot be compiled, stored or loaded."""
    try:
        compiler = find_compiler("CC", "cc", "gcc", "clang")
        command = [compiler, *FLAGS, "-I", str(FOLDER), "-x", "c", "-"]
        # The processor is part of the key, because -march=native code of a shared home directory may not run here.
        texts = [(FOLDER / source).read_text() for source in SOURCES]
        key = (*texts, BOTH_TYPES, " ".join(FLAGS), compiler, platform.machine(), _processor())
        return load_library(
            "kernels", key, lambda made: run_compiler([*command, "-o", str(made), "-lm"], str(FOLDER), text=BOTH_TYPES)
        )
    except (OSError, CompileError) as error:
        log.warning("the CPU runs slower kernels in torch: %s", error)
        return None


@functools.cache
def tensornet_library() -> ctypes.CDLL | None:
    """TensorNet's evaluation (tensornet.c); None, with one line in the log, if it can't be compiled or loaded."""
    loaded = c_library("tensornet")
    if loaded is None:
        return None
    for name in ("tensornet_scratch", "tensornet_instructions", "tensornet_run"):
        getattr(loaded, name).restype = ctypes.c_int64
    loaded.tensornet_instructions.argtypes = [ctypes.c_int64]
    return loaded


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
