"""A server of the i-PI protocol for tests, written from i-PI's documentation of the messages; atomic units."""

import struct

import numpy as np


def message(name: str) -> bytes:
    return name.encode().ljust(12)


class Server:
    """Speaks to one connected client over `connection`."""

    def __init__(self, connection) -> None:
        self.stream = connection.makefile("rwb")

    def send(self, *parts: bytes) -> None:
        self.stream.write(b"".join(parts))
        self.stream.flush()

    def header(self) -> str:
        return self.stream.read(12).decode().strip()

    def status(self) -> str:
        self.send(message("STATUS"))
        return self.header()

    def initialize(self, text: str = "") -> None:
        self.send(message("INIT"), struct.pack("=ii", 0, len(text)), text.encode())

    def ask(self, cells, positions, *, batch: bool) -> None:
        """POSDATA; rows of the cells are lattice vectors."""
        boxes = b"".join(np.asarray(part.T, "f8").tobytes() for cell in cells for part in (cell, np.linalg.pinv(cell)))
        places, size = np.asarray(positions, "f8").tobytes(), struct.pack("=i", positions.shape[1])
        self.send(message("POSDATA"), *((size, boxes) if batch else (boxes, size)), places)

    def answer(self, count: int, num_atoms: int):
        """Energies, forces and virials after GETFORCE."""
        self.send(message("GETFORCE"))
        assert self.header() == "FORCEREADY"
        energies = self.numbers(count)
        assert struct.unpack("=i", self.stream.read(4)) == (num_atoms,)
        forces, virials = self.numbers(count, num_atoms, 3), self.numbers(count, 3, 3)
        for _ in range(count):
            (length,) = struct.unpack("=i", self.stream.read(4))
            self.stream.read(length)
        return energies, forces, virials

    def numbers(self, *shape: int):
        return np.frombuffer(self.stream.read(8 * int(np.prod(shape)))).reshape(shape)

    def end(self) -> None:
        self.send(message("EXIT"))
