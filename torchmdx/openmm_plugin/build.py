"""Compiles the plugin once for the installed OpenMM and keeps it in the user's cache directory. Needs g++, no nvcc."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from torchmdx.models.compiled.build import cache_directory

HERE = Path(__file__).parent


class BuildError(RuntimeError):
    """Something could not be compiled or loaded; says what, in a line."""


def compiled(name: str, sources: list[str], options: list[str], links: list[str], key: str = "") -> Path:
    """The shared library that `sources` of this folder make. Raises BuildError."""
    wanted = ("CC", "cc", "gcc") if sources[0].endswith(".c") else ("CXX", "c++", "g++")
    compiler = shutil.which(os.environ.get(wanted[0], wanted[1])) or shutil.which(wanted[2])
    if compiler is None:
        raise BuildError(f"no compiler found ({wanted[1]}, {wanted[2]} or ${wanted[0]})")
    texts = [p.read_text() for p in sorted(HERE.rglob("*")) if p.suffix in (".c", ".cpp", ".h")]
    parts = (name, *texts, *sources, *options, *links, compiler, platform.machine(), key)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = cache_directory() / f"{name}-{digest}.so"
    if not path.exists():
        command = [compiler, "-O2", "-fPIC", "-shared", *options, *sources, *links]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                _compile(command, Path(folder) / path.name, sources[-1])
                # Several processes may compile at once; each leaves a whole file.
                os.replace(Path(folder) / path.name, path)
        except OSError as error:
            raise BuildError(f"{path.parent} cannot keep compiled code: {error}") from error
    return path


def _compile(command: list[str], made: Path, source: str) -> None:
    done = subprocess.run([*command, "-o", str(made)], cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} could not compile {source}: {(errors or ['no message'])[0]}")


def openmm_folder() -> Path:
    """Where OpenMM keeps headers (include) and libraries (lib). Raises BuildError."""
    import openmm

    beside = Path(openmm.__file__).parent.parent / "OpenMM.libs"
    for folder in (beside, Path(openmm.version.openmm_library_path).parent):
        if (folder / "include" / "OpenMM.h").is_file():
            return folder
    raise BuildError(f"OpenMM's headers were found neither in {beside} nor beside {openmm.version.openmm_library_path}")


@functools.cache
def plugin(cuda: bool) -> ctypes.CDLL:
    """The plugin, with or without its part for OpenMM's CUDA platform. Raises BuildError."""
    import openmm

    folder = openmm_folder()
    lib, more = folder / "lib", folder / "lib" / "plugins"
    sources = ["force.cpp", *(["cuda_kernel.cpp"] if cuda else [])]
    options = ["-std=c++17", "-isystem", str(folder / "include")]
    links = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lOpenMM"]
    if cuda:
        if not (more / "libOpenMMCUDA.so").is_file():
            raise BuildError(f"OpenMM's CUDA platform is not installed: no libOpenMMCUDA.so in {more}")
        options += ["-DTORCHMDX_CUDA", "-isystem", "cuda_types"]
        links += [f"-L{more}", f"-Wl,-rpath,{more}", "-lOpenMMCUDA", "-Wl,--allow-shlib-undefined"]
    path = compiled("openmm-plugin", sources, options, links, key=openmm.version.full_version)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the compiled plugin cannot be loaded: {error}") from error


@functools.cache
def context_library() -> ctypes.CDLL:
    """The functions of one_context.c. Raises BuildError."""
    path = compiled("one-context", ["one_context.c"], ["-std=gnu11"], ["-ldl", "-lpthread"])
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the compiled library cannot be loaded: {error}") from error
