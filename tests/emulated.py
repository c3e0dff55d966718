"""The kernel of one launch on the CPU: engines/fused/one_launch_emulated.cpp, compiled with g++."""

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("g++")


class Emulator:
    """Runs the kernel on one core, as `ClusterKernel` does on a GPU."""

    def __init__(self, folder, **constants):
        from torchmdx.engines.fused.one_launch import SOURCES

        if COMPILER is None or platform.machine() != "x86_64":
            pytest.skip("the emulation needs g++ on an x86-64 processor")
        here, made = Path(__file__).parent / "engines/fused", folder / f"one_launch{len(constants)}.so"
        flags = ["-O2", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{SOURCES}", f"-I{here}"]
        flags += [f"-D{name}={value}" for name, value in constants.items()]
        subprocess.run([COMPILER, *flags, str(here / "one_launch_emulated.cpp"), "-o", str(made)], check=True)
        self.library = ctypes.CDLL(str(made))

    def most_clusters(self, shared_bytes):
        return 15

    def launch(self, clusters, shared_bytes, given):
        self.library.launch(ctypes.byref(given), clusters, shared_bytes)
