"""The functions that the pair style calls: a potential is opened, atoms are assigned, and energies are evaluated."""

from __future__ import annotations

import ctypes
import itertools
import logging
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ase.data import atomic_numbers

from torchmdx.checkpoints.prepare import DTYPES, prepare_potential
from torchmdx.lammps.settings import Settings
from torchmdx.models.coulomb_cutoff import takes_charges
from torchmdx.runtime.devices import choose_device
from torchmdx.step.domain_reach import num_hops, reach
from torchmdx.step.domain_step import DomainStep

log = logging.getLogger(__name__)
MESSAGE_LENGTH = 2048  # as in torchmdx_plugin.h
_DOUBLE, _INT = ctypes.POINTER(ctypes.c_double), ctypes.POINTER(ctypes.c_int)
_TEXT = ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, _INT, _DOUBLE, _DOUBLE, _TEXT)
_ELEMENTS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, _INT, _TEXT)
_ASSIGN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong, _INT, _INT, _INT, _DOUBLE, _DOUBLE,
    ctypes.POINTER(_DOUBLE), _TEXT,
)  # fmt: skip
_EVALUATE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, _DOUBLE, _DOUBLE, ctypes.POINTER(_DOUBLE), ctypes.POINTER(_DOUBLE), _DOUBLE, _TEXT
)
_ATOM_VIRIALS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(_DOUBLE), _TEXT)
_CLOSE = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _PluginCallbacks(ctypes.Structure):
    """`struct Callbacks` of torchmdx_plugin.h."""

    _fields_ = [
        ("open", _OPEN), ("elements", _ELEMENTS), ("assign", _ASSIGN), ("evaluate", _EVALUATE),
        ("atom_virials", _ATOM_VIRIALS), ("close", _CLOSE),
    ]  # fmt: skip


class LammpsSession:
    """The potential of one pair style, and the step that evaluates this process's atoms."""

    def __init__(self, settings: Settings, local_rank: int) -> None:
        self.settings = settings
        device = choose_device(settings.device_of(local_rank))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        treatment = (settings.coulomb_cutoff, settings.coulomb, settings.coulomb_accuracy)
        self.potential = prepare_potential(settings.model, DTYPES[settings.precision], device, *treatment)
        if takes_charges(self.potential):
            raise ValueError(
                "pair_style torchmdx needs a potential that predicts its charges or has none, got one that takes the "
                f"partial charges of atoms as given: {settings.model}"
            )
        self.reach, self.cutoff = reach(self.potential), self.reach_of_a_hop()
        self.step: DomainStep | None = None
        # Results stay where LAMMPS reads them until the next evaluation.
        self.kept: tuple[Any, ...] = ()

    def reach_of_a_hop(self) -> float:
        """The cutoff of the network, Å."""
        members = getattr(self.potential, "members", [self.potential])
        return max(float(member.config.cutoff) for member in members)

    def numbers(self, symbols: list[str]) -> list[int]:
        """Atomic numbers of element symbols; 0 for NULL."""
        found = []
        for symbol in symbols:
            if symbol != "NULL" and atomic_numbers.get(symbol, 0) < 1:
                raise ValueError(f"pair_coeff needs symbols of elements or NULL, got {symbol!r}")
            found.append(0 if symbol == "NULL" else atomic_numbers[symbol])
        given = torch.tensor([number for number in found if number], device=self.potential.device)
        for member in getattr(self.potential, "members", [self.potential]):
            member.require_elements(given)
        return found

    def assign(
        self,
        positions: np.ndarray,
        numbers: np.ndarray,
        hops: np.ndarray,
        owned: int,
        total: int,
        cell: np.ndarray,
        periodic: list[bool],
    ) -> np.ndarray | None:
        """Takes other atoms; returns where positions are to be written, None if this process owns no atoms.

        The first time, a process that owns all atoms warns of what the potential was not made for.
        """
        if self.step is None or self.step.pbc.tolist() != periodic:
            self.step = None  # frees its memory
            self.step = DomainStep(
                self.potential, periodic, charge=self.settings.charge, precision=self.settings.precision
            )
            self._report(periodic)
            if 0 < owned == total:  # closed shells are a question of all atoms
                for doubt in self.potential.doubts(numbers.tolist(), self.settings.charge, any(periodic)):
                    warnings.warn(doubt, stacklevel=2)
        hops = np.minimum(hops, num_hops(self.potential))  # farther ghosts matter to priors alone
        self.step.assign(positions, numbers, owned, cell, num_total=total, hops=hops)
        return self.step.inputs if owned else None

    def _report(self, periodic: list[bool]) -> None:
        cut = " ".join(axis for axis, whole in zip("xyz", periodic, strict=True) if not whole) or "none"
        log.info("%s, ghosts within %.1f Å along the directions %s", self.potential.device, self.reach, cut)


_sessions: dict[int, LammpsSession] = {}
_numbers = itertools.count()
# The C functions must live as long as the plugin, and those that were registered before.
_registered: list[_PluginCallbacks] = []


def register(address: int) -> None:
    """Gives the functions to the pair style, by the address of its `torchmdx_register`."""
    callbacks = _PluginCallbacks(
        _OPEN(_open), _ELEMENTS(_elements), _ASSIGN(_assign), _EVALUATE(_evaluate), _ATOM_VIRIALS(_atom_virials),
        _CLOSE(_close),
    )  # fmt: skip
    _registered.append(callbacks)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.byref(callbacks))


def _guarded(message: int, work: Callable[[], None]) -> int:
    """0, or 1 with the reason in LAMMPS's buffer: no exception may leave a function that C++ has called."""
    try:
        work()
    except BaseException as error:
        log.debug("%s", traceback.format_exc())
        text = (str(error) or type(error).__name__).replace("\n", " ")
        kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
        encoded = (kind + text).encode()[: MESSAGE_LENGTH - 1]
        ctypes.memmove(message, encoded + b"\0", len(encoded) + 1)
        return 1
    return 0


def _open(arguments: bytes, local_rank: int, number: Any, reach_out: Any, cutoff_out: Any, message: int) -> int:
    def work() -> None:
        session = LammpsSession(Settings.parse(arguments.decode().split("\n")), local_rank)
        key = next(_numbers)
        _sessions[key] = session
        number[0], reach_out[0], cutoff_out[0] = key, session.reach, session.cutoff

    return _guarded(message, work)


def _elements(number: int, symbols: bytes, out: Any, message: int) -> int:
    def work() -> None:
        for place, value in enumerate(_sessions[number].numbers(symbols.decode().split())):
            out[place] = value

    return _guarded(message, work)


def _assign(
    number: int,
    atoms: int,
    owned: int,
    total: int,
    numbers: Any,
    hops: Any,
    periodic: Any,
    cell: Any,
    positions: Any,
    inputs: Any,
    message: int,
) -> int:
    def work() -> None:
        def copied(pointer: Any, *shape: int) -> np.ndarray:
            return np.ctypeslib.as_array(pointer, shape).copy()

        found = _sessions[number].assign(
            copied(positions, atoms, 3), copied(numbers, atoms), copied(hops, atoms), owned, total,
            copied(cell, 3, 3), [bool(periodic[axis]) for axis in range(3)],
        )  # fmt: skip
        if found is not None:
            inputs[0] = found.ctypes.data_as(_DOUBLE)

    return _guarded(message, work)


def _evaluate(number: int, cell: Any, energy: Any, energies: Any, forces: Any, virial: Any, message: int) -> int:
    def work() -> None:
        session = _sessions[number]
        assert session.step is not None
        result = session.step(cell=np.ctypeslib.as_array(cell, (3, 3)))
        own, of_atoms = np.ascontiguousarray(result.energies), np.ascontiguousarray(result.forces)
        session.kept = own, of_atoms
        energy[0] = result.energy
        energies[0], forces[0] = own.ctypes.data_as(_DOUBLE), of_atoms.ctypes.data_as(_DOUBLE)
        np.ctypeslib.as_array(virial, (9,))[:] = np.asarray(result.virial).ravel()

    return _guarded(message, work)


def _atom_virials(number: int, flux: int, virials: Any, message: int) -> int:
    def work() -> None:
        session = _sessions[number]
        assert session.step is not None
        found = np.ascontiguousarray(session.step.atom_virials(flux=bool(flux)))
        session.kept = (*session.kept, found)
        virials[0] = found.ctypes.data_as(_DOUBLE)

    return _guarded(message, work)


def _close(number: int) -> None:
    _sessions.pop(number, None)
