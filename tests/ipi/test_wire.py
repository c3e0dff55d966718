"""Messages of the i-PI protocol over a pair of sockets, against a server written from i-PI's documentation."""

import socket
import threading

import numpy as np
import pytest
from servers import Server, message

from torchmdx.ipi.wire import ConnectionLost, Wire


@pytest.fixture
def both():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Wire(ours), Server(theirs)


def test_structures_of_both_forms(both):
    wire, server = both
    rng = np.random.default_rng(1)
    for batch in (None, 1, 3):
        count = batch or 1
        cells, positions = rng.random((count, 3, 3)), rng.random((count, 5, 3))
        server.ask(cells, positions, batch=batch is not None)
        assert wire.header() == "POSDATA"
        found = wire.structures(5, batch)
        np.testing.assert_array_equal(found[0], cells)
        np.testing.assert_array_equal(found[1], positions)


def test_forces_of_a_request(both):
    wire, server = both
    rng = np.random.default_rng(2)
    given = rng.random(2), rng.random((2, 4, 3)), rng.random((2, 3, 3))
    wire.forces(*given)
    for sent, found in zip(given, server.answer(2, 4), strict=True):
        np.testing.assert_array_equal(found, sent)


@pytest.mark.parametrize(
    ("text", "batch"),
    [("", None), (" ", None), (" name : x , , batch_size:8", 8), ("batch_size:16", 16), ("batch_size:8 , x : y", None)],
)
def test_init_announces_the_number_of_structures(both, text, batch):
    wire, server = both
    server.initialize(text)
    assert wire.header() == "INIT"
    assert wire.initial() == batch


def test_what_is_not_the_protocol_is_refused(both):
    wire, server = both
    server.send(b"\xff" * 12)
    with pytest.raises(ValueError, match="expected a message of the i-PI protocol, got the bytes b'.xff"):
        wire.header()
    server.send(b"\xff" * 8)
    with pytest.raises(ValueError, match="the text of INIT must have 0 to 1048576 bytes, got -1"):
        wire.initial()
    server.ask(np.eye(3)[None], np.zeros((1, 7, 3)), batch=False)
    assert wire.header() == "POSDATA"
    with pytest.raises(ValueError, match="the server's structure must have the 9 atoms of the file, got 7"):
        wire.structures(9, None)


def test_a_closed_connection(both):
    wire, server = both
    server.send(message("STATUS")[:5])
    server.stream.close()
    wire._connection.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLost):
        wire.status("READY")


def test_a_connection_that_closes_inside_of_a_message():
    ours, theirs = socket.socketpair()
    with ours:
        sender = threading.Thread(target=lambda: (theirs.sendall(b"POS"), theirs.close()))
        sender.start()
        with pytest.raises(ConnectionLost, match="closed by the server"):
            Wire(ours).header()
        sender.join()
