"""The plugin from Python's side: callbacks that C++ calls, and adding the force to a System."""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from xml.etree import ElementTree

import numpy as np
import openmm
from numpy.typing import NDArray

from torchmdx.openmm_force.native.build import BuildError, plugin
from torchmdx.units import KJ_PER_MOL, NANOMETER


@dataclass(frozen=True)
class Handles:
    """Addresses in a captured step: graphs (energy_graph 0 for none), device buffers in float64, pinned host memory.

    audit_every: evaluations between audits, 0 for none. audit_failed: of a host int64, not 0 once an audit has failed.
    """

    graph: int
    energy_graph: int
    positions: int
    cell: int
    forces: int
    device_flags: int
    host_energy: int
    host_flags: int
    audit_every: int = 0
    audit_failed: int = 0


class Session(Protocol):
    """What a Context has of a provider. Positions [n,3] and cell [3,3] in Å; energies in eV, forces in eV/Å."""

    num_atoms: int

    def start(self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None) -> Handles:
        """On a GPU, before the first evaluation and after a failed recovery: captures what is not captured."""

    def recover(self, energy_only: bool) -> Handles:
        """Evaluates what is in the device buffers again after a flag was raised; raises if that cannot be mended.

        Graphs whose handles were given before may be destroyed, whether it raises or not: C++ holds none meanwhile.
        """

    def audit(self, evaluation: int, step: int) -> None:
        """Starts an audit of what is in the device buffers; raises if the one before has failed.

        step: of the Context, where the evaluation was made.
        """

    def evaluate(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64] | None
    ) -> tuple[float, NDArray[np.float64]]:
        """On platforms of the CPU."""

    def close(self) -> None:
        """The Context is gone."""


class Provider(Protocol):
    """Opens sessions for one force."""

    def open(self, device: int | None) -> Session:
        """device: index of the CUDA device of the Context, None on a platform of the CPU."""


class _Handles(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in Handles.__dataclass_fields__]


class _Units(ctypes.Structure):
    _fields_ = [("length", ctypes.c_double), ("energy", ctypes.c_double), ("force", ctypes.c_double)]


_ID, _TEXT, _DOUBLES = ctypes.c_longlong, ctypes.POINTER(ctypes.c_char), ctypes.POINTER(ctypes.c_double)
_HANDLES = ctypes.POINTER(_Handles)
_OPEN = ctypes.CFUNCTYPE(_ID, _ID, ctypes.c_int, _TEXT, ctypes.c_int)
_START = ctypes.CFUNCTYPE(ctypes.c_int, _ID, _DOUBLES, _DOUBLES, _HANDLES, _TEXT, ctypes.c_int)
_RECOVER = ctypes.CFUNCTYPE(ctypes.c_int, _ID, ctypes.c_int, _HANDLES, _TEXT, ctypes.c_int)
_AUDIT = ctypes.CFUNCTYPE(ctypes.c_int, _ID, ctypes.c_longlong, ctypes.c_longlong, _TEXT, ctypes.c_int)
_EVALUATE = ctypes.CFUNCTYPE(ctypes.c_int, _ID, _DOUBLES, _DOUBLES, _DOUBLES, _DOUBLES, _TEXT, ctypes.c_int)
_CLOSE = ctypes.CFUNCTYPE(None, _ID)
_RESTORE = ctypes.CFUNCTYPE(_ID, ctypes.c_char_p, _TEXT, ctypes.c_int)
_DROP = ctypes.CFUNCTYPE(None, _ID)


class _Callbacks(ctypes.Structure):
    _fields_ = [
        ("open", _OPEN),
        ("start", _START),
        ("recover", _RECOVER),
        ("audit", _AUDIT),
        ("evaluate", _EVALUATE),
        ("close", _CLOSE),
        ("restore", _RESTORE),
        ("drop", _DROP),
    ]


_numbers = itertools.count(1)
_providers: dict[int, Provider] = {}
_sessions: dict[int, Session] = {}
_restorers: list[Callable[[str], Provider]] = []


def _guarded(work: Callable[..., int]) -> Callable[..., int]:
    """No exception crosses C++: its text does. The last two arguments are where it goes, an empty text on success.

    C++ fills in a text of its own before it calls: a pending signal raises before the first line of `call`, and ctypes
    then returns an undefined value.
    """

    @functools.wraps(work)
    def call(*arguments: Any) -> int:
        *given, message, size = arguments
        try:
            answer = work(*given)
            message[0] = b"\0"
            return answer
        except BaseException as error:  # KeyboardInterrupt too: it would be lost
            text = (str(error) or type(error).__name__).encode(errors="replace")[: size - 1]
            text = text.decode(errors="ignore").encode()  # no half character at the end
            ctypes.memmove(message, text + b"\0", len(text) + 1)
            return 0

    return call


def _array(pointer: Any, count: int) -> NDArray[np.float64]:
    return np.ctypeslib.as_array(pointer, (count, 3))


@_guarded
def _open(provider: int, device: int) -> int:
    number = next(_numbers)
    _sessions[number] = _providers[provider].open(None if device < 0 else device)
    return number


def _give(handles: Handles, out: Any) -> int:
    for name in Handles.__dataclass_fields__:
        setattr(out.contents, name, getattr(handles, name))
    return 1


@_guarded
def _start(session: int, positions: Any, cell: Any, out: Any) -> int:
    found = _sessions[session]
    box = _array(cell, 3).copy() if cell else None
    return _give(found.start(_array(positions, found.num_atoms).copy(), box), out)


@_guarded
def _recover(session: int, energy_only: int, out: Any) -> int:
    return _give(_sessions[session].recover(bool(energy_only)), out)


@_guarded
def _audit(session: int, evaluation: int, step: int) -> int:
    _sessions[session].audit(evaluation, step)
    return 1


@_guarded
def _evaluate(session: int, positions: Any, cell: Any, energy: Any, forces: Any) -> int:
    found = _sessions[session]
    box = _array(cell, 3) if cell else None
    energy[0], result = found.evaluate(_array(positions, found.num_atoms), box)
    _array(forces, found.num_atoms)[:] = result
    return 1


def _close(session: int) -> None:
    found = _sessions.pop(session, None)
    if found is not None:
        found.close()


@_guarded
def _restore(reference: bytes) -> int:
    number = next(_numbers)
    _providers[number] = _restorers[-1](reference.decode())
    return number


def _drop(provider: int) -> None:
    """Frees a potential with the last force and Context that use it."""
    _providers.pop(provider, None)


# Kept for as long as the process lives: C++ holds their addresses.
_CALLBACKS = _Callbacks(
    _OPEN(_open),
    _START(_start),
    _RECOVER(_recover),
    _AUDIT(_audit),
    _EVALUATE(_evaluate),
    _CLOSE(_close),
    _RESTORE(_restore),
    _DROP(_drop),
)


@functools.cache
def _library(cuda: bool) -> ctypes.CDLL:
    """The plugin, told about the callbacks. Raises BuildError."""
    library = plugin(cuda)
    units = _Units(NANOMETER, 1.0 / KJ_PER_MOL, NANOMETER / KJ_PER_MOL)
    taken = library.torchmdx_register(ctypes.byref(_CALLBACKS), ctypes.byref(units))
    if cuda and not taken:
        raise BuildError("OpenMM has not loaded its CUDA platform: " + "; ".join(_failures() or ["no reason given"]))
    atexit.register(library.torchmdx_shut_down)
    return library


def _failures() -> list[str]:
    return [text for text in openmm.Platform.getPluginLoadFailures() if "libOpenMMCUDA.so" in text.split(":")[0]]


def unavailable(cuda: bool = True) -> str | None:
    """None if the plugin can be used, with OpenMM's CUDA platform or without; else the reason, in a line.

    The first call compiles, which takes some seconds.
    """
    try:
        _library(cuda)
    except BuildError as error:
        return str(error)
    return None


def restore_with(restorer: Callable[[str], Provider]) -> None:
    """Says how a provider is made of the text that a saved System holds."""
    _restorers[:] = [restorer]  # one, however often a force is added


def particles_of(force: openmm.Force) -> tuple[int, ...]:
    """Particles of a force of the plugin, empty for all of them; empty for other forces, too.

    OpenMM's Python knows such a force as an openmm.Force, without methods of its own: read from what is saved of it.
    """
    if type(force) is not openmm.Force:
        return ()
    saved = ElementTree.fromstring(openmm.XmlSerializer.serialize(force))
    if saved.get("type") != "TorchmdxForce":
        return ()
    return tuple(int(particle.attrib["index"]) for particle in saved.iter("Particle"))


def add_force(
    system: openmm.System,
    provider: Provider,
    *,
    atoms: Sequence[int] | None,
    periodic: bool,
    scale_parameter: str | None,
    reference: str,
    cuda: bool = True,
) -> openmm.Force:
    """Adds a force to the system and returns it; reference: what `restore_with` makes the provider of again."""
    library, number = _library(cuda), next(_numbers)
    chosen = (ctypes.c_int * len(atoms or ()))(*(atoms or ()))
    _providers[number] = provider  # nothing below fails: the force frees it
    index = library.torchmdx_add(
        ctypes.c_void_p(int(system.this)),
        ctypes.c_longlong(number),
        chosen,
        len(chosen),
        int(periodic),
        (scale_parameter or "").encode(),
        reference.encode(),
    )
    return system.getForce(index)
