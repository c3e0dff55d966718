"""Kernels in CUDA C++ on the CPU: engines/gpu/*_emulated.cpp, compiled with g++."""

import ctypes
import fcntl
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("g++")


def compiled(folder, name, **constants):
    """The library of NAME_emulated.cpp, with macros defined; skips the test where it cannot be compiled.

    Test processes of one run share what they have compiled: folder is of pytest, in which each has a folder of its own.
    """
    from torchmdx.engines.gpu.one_launch import SOURCES

    if COMPILER is None or platform.machine() != "x86_64":
        pytest.skip("the emulation needs g++ on an x86-64 processor")
    here = Path(__file__).parent / "engines/gpu"
    own = [parent.parent for parent in folder.parents if parent.name.startswith("popen-")]
    words = "-".join([name, *(f"{key}{value}" for key, value in sorted(constants.items()))])
    made = (own[0] if own else folder) / f"{words}.so"
    flags = ["-O2", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{SOURCES}", f"-I{here}"]
    flags += [f"-D{name}={value}" for name, value in constants.items()]
    flags += os.environ.get("EMULATED_FLAGS", "").split()  # of tools/check_sanitizers.py
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = made.with_suffix(".new")
            subprocess.run([COMPILER, *flags, str(here / f"{name}_emulated.cpp"), "-o", str(partial)], check=True)
            partial.rename(made)
    return ctypes.CDLL(str(made))


def needs_nvrtc(folder, monkeypatch):
    """Skips the test where there is no NVRTC; keeps what it compiles in a folder that is empty."""
    from torchmdx.runtime import cuda_source
    from torchmdx.runtime.compile_cache import VARIABLE, CompileError

    try:
        cuda_source.nvrtc()
    except CompileError as error:
        pytest.skip(str(error))
    monkeypatch.setenv(VARIABLE, str(folder))


class Emulator:
    """Runs the kernel of one launch on one core, as `ClusterKernel` does on a GPU."""

    def __init__(self, folder, **constants):
        self.library = compiled(folder, "one_launch", **constants)

    def most_clusters(self, shared_bytes):
        return 15

    def launch(self, clusters, shared_bytes, given):
        self.library.launch(ctypes.byref(given), clusters, shared_bytes)


class TileEmulator:
    """Runs one of the kernels of tiles of atoms on one core, as `GridKernel` does on a GPU."""

    def __init__(self, library, which, shared_bytes):
        self.library, self.which, self.shared_bytes = library, which, shared_bytes

    def launch(self, blocks, given):
        self.library.launch(ctypes.byref(given), self.which, blocks, self.shared_bytes)


def message_emulators(folder):
    """The kernels of row_messages.py."""
    from torchmdx.engines.gpu import row_messages

    library = compiled(folder, "messages", **row_messages.constants())
    assert library.size_of_params() == ctypes.sizeof(row_messages.RowsStruct)
    return {name: TileEmulator(library, k, 0) for k, name in enumerate(row_messages.KERNELS)}
