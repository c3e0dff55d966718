"""Compiles the plugin for the installed OpenMM and caches it in the user's cache directory. Needs g++, but not nvcc."""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path

from torchmdx.runtime.compile_cache import CacheError, CompileError, find_compiler, load_library, run_compiler

HERE = Path(__file__).parent


class BuildError(RuntimeError):
    """A library could not be compiled or loaded; a one-line reason."""


def compiled(
    name: str, sources: list[str], options: list[str], links: list[str], key: str = "", only_cached: bool = False
) -> ctypes.CDLL:
    """The shared library compiled from `sources` in this folder. Raises BuildError.

    Args:
        only_cached: Do not compile, but raise if the cache lacks the library.
    """

    def make(path: Path) -> None:
        if only_cached:
            raise BuildError(f"{name} has not been compiled on this machine")
        names = ("CC", "cc", "gcc") if sources[0].endswith(".c") else ("CXX", "c++", "g++")
        command = [find_compiler(*names), "-O2", "-fPIC", "-shared", *options, *sources, *links]
        run_compiler([*command, "-o", str(path)], sources[-1], folder=HERE)

    texts = [p.read_text() for p in sorted(HERE.rglob("*")) if p.suffix in (".c", ".cpp", ".h")]
    try:
        # Whatever compiler made it: a folder that is shared serves machines without one.
        return load_library(name, (*texts, *sources, *options, *links, platform.machine(), key), make)
    except (CompileError, CacheError) as error:
        raise BuildError(str(error)) from error
    except OSError as error:
        raise BuildError(f"the compiled library {name} cannot be loaded: {error}") from error


def openmm_folder() -> Path:
    """The folder with OpenMM's headers (include) and libraries (lib). Raises BuildError."""
    import openmm

    bundled = Path(openmm.__file__).parent.parent / "OpenMM.libs"
    for folder in (bundled, Path(openmm.version.openmm_library_path).parent):
        if (folder / "include" / "OpenMM.h").is_file():
            return folder
    raise BuildError(f"OpenMM's headers are neither in {bundled} nor next to {openmm.version.openmm_library_path}")


@functools.cache
def plugin(cuda: bool, only_cached: bool = False) -> ctypes.CDLL:
    """The plugin, with or without support for OpenMM's CUDA platform. Raises BuildError.

    Args:
        only_cached: Do not compile, but raise if the cache lacks the library.
    """
    import openmm

    folder = openmm_folder()
    lib, more = folder / "lib", folder / "lib" / "plugins"
    sources = ["force.cpp", "derivative.cpp", *(["cuda_kernel.cpp"] if cuda else [])]
    options = ["-std=c++17", "-isystem", str(folder / "include")]
    links = [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lOpenMM"]
    if cuda:
        if not (more / "libOpenMMCUDA.so").is_file():
            raise BuildError(f"OpenMM's CUDA platform is not installed: no libOpenMMCUDA.so in {more}")
        options += ["-DTORCHMDX_CUDA", "-isystem", "cuda_types"]
        links += [f"-L{more}", f"-Wl,-rpath,{more}", "-lOpenMMCUDA", "-Wl,--allow-shlib-undefined"]
    return compiled("openmm-plugin", sources, options, links, openmm.version.full_version, only_cached)


@functools.cache
def context_library() -> ctypes.CDLL:
    """The functions of one_context.c. Raises BuildError."""
    return compiled("one-context", ["one_context.c"], ["-std=gnu11"], ["-ldl", "-lpthread"])
