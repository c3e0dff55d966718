"""Addresses of i-PI servers: a Unix socket, or a host and a port."""

from __future__ import annotations

import socket
from dataclasses import dataclass

PREFIX = "/tmp/ipi_"  # of i-PI and ASE; i-PI's option -S changes it
LONGEST_PATH = 107  # bytes of the path of a Unix socket on Linux
LAST_PORT = 65535
# TCP connections are probed after this many idle seconds, so that a machine that was switched off is noticed.
IDLE = 60


@dataclass(frozen=True)
class Address:
    """Where a server listens: `path` of a Unix socket, or `host` and `port`."""

    path: str | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """From "unix:NAME" (the socket /tmp/ipi_NAME), "unix:/PATH" or "HOST:PORT". Raises ValueError."""
        if text.startswith("unix:"):
            return cls(path=_path(text.removeprefix("unix:"), text))
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host:
            raise ValueError(f"--ipi must be unix:NAME or HOST:PORT, got {text!r}")
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= LAST_PORT):
            raise ValueError(f"the port of --ipi must be a number from 1 to {LAST_PORT}, got {port!r}")
        return cls(host=host, port=int(port))

    def __str__(self) -> str:
        if self.path is not None:
            return f"the Unix socket {self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connect(self, timeout: float) -> socket.socket:
        """A blocking connection.

        Raises:
            OSError: Among them TimeoutError after `timeout` seconds.
        """
        if self.path is not None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.settimeout(timeout)
                connection.connect(self.path)
            except BaseException:
                connection.close()
                raise
        else:
            connection = socket.create_connection((self.host, self.port), timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(connection)
        connection.settimeout(None)  # between requests the server may compute for hours
        return connection


def _path(name: str, text: str) -> str:
    if not name or "\0" in name:
        raise ValueError(f"--ipi unix:NAME needs the name of a socket, got {text!r}")
    path = name if name.startswith("/") else PREFIX + name
    if len(path.encode()) > LONGEST_PATH:
        raise ValueError(f"the path of a Unix socket must have at most {LONGEST_PATH} bytes, got {path!r}")
    return path


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; elsewhere the system's interval, often two hours, remains
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, IDLE // 6)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
