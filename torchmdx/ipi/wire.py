"""Messages of the i-PI protocol: a header of twelve characters, then numbers in atomic units.

The server asks and the client answers::

    | from the server | numbers | answer |
    |---|---|---|
    | STATUS | | NEEDINIT, READY or HAVEDATA |
    | INIT | number of the replica, length of a text, text | |
    | POSDATA | cell, its inverse, number of atoms, positions | |
    | GETFORCE | | FORCEREADY, energy, number of atoms, forces, virial, length of a text, text |
    | EXIT | | |

i-PI 3.3 ends the text of INIT with "batch_size:K" if every POSDATA is to hold K structures: number of atoms, then all
cells with their inverses, then all positions. FORCEREADY then has all energies, the number of atoms, all forces, all
virials, and a text for each structure. Columns of a cell on the wire are lattice vectors.
"""

from __future__ import annotations

import re
import socket
import struct

import numpy as np
from numpy.typing import NDArray

HEADER = 12
LONGEST_TEXT = 1 << 20  # of INIT; anything longer is not this protocol
_BATCH = re.compile(r"batch_size\s*:\s*(\d+)\s*$")

Numbers = NDArray[np.float64]


class ConnectionLost(ConnectionError):
    """The server closed the connection, or the connection failed."""


class Wire:
    """Sends and receives the messages over a connected socket. Methods raise ConnectionLost."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def close(self) -> None:
        self._connection.close()

    def header(self) -> str:
        """The next message, such as "POSDATA". Raises ValueError for bytes that are no message."""
        received = self._take(HEADER)
        try:
            return received.decode("ascii").strip()
        except UnicodeDecodeError:
            raise ValueError(f"expected a message of the i-PI protocol, got the bytes {received!r}") from None

    def status(self, answer: str) -> None:
        self._give(answer.encode("ascii").ljust(HEADER))

    def initial(self) -> int | None:
        """The rest of INIT: the number of structures of every request, None for requests of the older form."""
        _, length = struct.unpack("=ii", self._take(8))
        if not 0 <= length <= LONGEST_TEXT:
            raise ValueError(f"the text of INIT must have 0 to {LONGEST_TEXT} bytes, got {length}")
        found = _BATCH.search(self._take(length).decode("utf-8", errors="replace"))
        return int(found[1]) if found else None

    def structures(self, num_atoms: int, batch: int | None) -> tuple[Numbers, Numbers]:
        """The rest of POSDATA: cells [K,3,3] with lattice vectors as rows, and positions [K,N,3].

        Raises:
            ValueError: For another number of atoms than expected.
        """
        count = batch or 1
        if batch is None:
            boxes = self._numbers((1, 2, 3, 3))
            self._require(num_atoms)
        else:
            self._require(num_atoms)
            boxes = self._numbers((count, 2, 3, 3))
        return boxes[:, 0].transpose(0, 2, 1).copy(), self._numbers((count, num_atoms, 3))

    def forces(self, energies: Numbers, forces: Numbers, virials: Numbers) -> None:
        """FORCEREADY with the results of one request: energies [K], forces [K,N,3], virials [K,3,3]."""
        count, num_atoms = forces.shape[:2]
        given = [np.ascontiguousarray(part, np.float64).tobytes() for part in (energies, forces, virials)]
        texts = struct.pack("=i", 0) * count
        size = struct.pack("=i", num_atoms)
        self._give(b"FORCEREADY".ljust(HEADER) + given[0] + size + given[1] + given[2] + texts)

    def _require(self, expected: int) -> None:
        (sent,) = struct.unpack("=i", self._take(4))
        if sent != expected:
            raise ValueError(f"the server's structure must have the {expected} atoms of the file, got {sent}")

    def _numbers(self, shape: tuple[int, ...]) -> Numbers:
        return np.frombuffer(self._take(8 * int(np.prod(shape))), np.float64).reshape(shape).copy()

    def _take(self, length: int) -> bytes:
        buffer = bytearray(length)
        view = memoryview(buffer)
        while len(view):
            try:
                received = self._connection.recv_into(view)
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            if not received:
                raise ConnectionLost("closed by the server")
            view = view[received:]
        return bytes(buffer)

    def _give(self, message: bytes) -> None:
        try:
            self._connection.sendall(message)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
