"""Addresses of i-PI servers: what is accepted, and what is refused with its value."""

import re
import socket

import pytest

from torchmdx.ipi.address import Address


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("unix:ethanol", Address(path="/tmp/ipi_ethanol"), "the Unix socket /tmp/ipi_ethanol"),
        ("unix:/run/me/socket", Address(path="/run/me/socket"), "the Unix socket /run/me/socket"),
        ("localhost:31415", Address(host="localhost", port=31415), "localhost:31415"),
        ("[::1]:65535", Address(host="::1", port=65535), "[::1]:65535"),
    ],
)
def test_addresses(text, address, shown):
    assert Address.parse(text) == address
    assert str(address) == shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unix:", "--ipi unix:NAME needs the name of a socket, got 'unix:'"),
        ("unix:" + "a" * 99, "the path of a Unix socket must have at most 107 bytes, got '/tmp/ipi_a"),
        ("localhost", "--ipi must be unix:NAME or HOST:PORT, got 'localhost'"),
        (":31415", "--ipi must be unix:NAME or HOST:PORT, got ':31415'"),
        ("localhost:", "the port of --ipi must be a number from 1 to 65535, got ''"),
        ("localhost:0", "the port of --ipi must be a number from 1 to 65535, got '0'"),
        ("localhost:65536", "the port of --ipi must be a number from 1 to 65535, got '65536'"),
        ("localhost:ipi", "the port of --ipi must be a number from 1 to 65535, got 'ipi'"),
        ("localhost:-1", "the port of --ipi must be a number from 1 to 65535, got '-1'"),
    ],
)
def test_bad_addresses(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Address.parse(text)


def test_connections_block_and_are_probed():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Address(host="127.0.0.1", port=port).connect(5.0) as connection:
            assert connection.gettimeout() is None
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_missing_socket_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        Address.parse(f"unix:{tmp_path}/none").connect(1.0)
