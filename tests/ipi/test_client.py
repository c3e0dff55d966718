"""The client of the i-PI protocol against a server in a thread: requests, EXIT, lost connections, time limits."""

import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from servers import Server, message

from torchmdx.ipi.address import Address
from torchmdx.ipi.client import Client

ATOMS = 4


class Springs:
    """In the place of a potential's beads: energies of springs to the origin, in numbers that a test can compute."""

    num_atoms = ATOMS

    def __call__(self, positions, cells):
        return (positions**2).sum((1, 2)) / 2, -positions, cells


class Sessions(threading.Thread):
    """Accepts connections one after another and gives each to the next function; keeps an error for `finish`."""

    def __init__(self, listener: socket.socket, *sessions) -> None:
        super().__init__(daemon=True)
        self.listener, self.sessions, self.error = listener, sessions, None
        self.start()

    def run(self) -> None:
        try:
            for session in self.sessions:
                connection, _ = self.listener.accept()
                with connection:
                    server = Server(connection)
                    session(server)
                    with suppress(OSError):
                        server.stream.close()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.join(30)
        assert not self.is_alive()
        if self.error:
            raise self.error


def one_request(server: Server, count: int = 1, *, batch: bool = False, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    cells, positions = rng.random((count, 3, 3)), rng.random((count, ATOMS, 3))
    server.ask(cells, positions, batch=batch)
    assert server.status() == "HAVEDATA"
    energies, forces, virials = server.answer(count, ATOMS)
    np.testing.assert_allclose(energies, (positions**2).sum((1, 2)) / 2, rtol=1e-15)
    np.testing.assert_array_equal(forces, -positions)
    np.testing.assert_array_equal(virials, cells)
    assert server.status() == "READY"


def begin(server: Server, text: str = "") -> None:
    assert server.status() == "NEEDINIT"
    server.initialize(text)
    assert server.status() == "READY"


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def client_of(listener, wait: float = 5.0) -> tuple[Client, list[str]]:
    said: list[str] = []
    address = Address(host="127.0.0.1", port=listener.getsockname()[1])
    return Client(Springs(), address, wait=wait, report=said.append), said


def test_requests_until_exit(listener):
    def session(server):
        begin(server)
        for seed in range(3):
            one_request(server, seed=seed)
        server.end()

    sessions = Sessions(listener, session)
    client, said = client_of(listener)
    served = client.run()
    sessions.finish()
    assert (served.requests, served.structures, served.lost) == (3, 3, 0)
    assert said == [f"connected to {client.address}"]


def test_batches_that_i_pi_announces(listener):
    def session(server):
        begin(server, " x : y , , batch_size:5")
        one_request(server, 5, batch=True)
        one_request(server, 5, batch=True, seed=1)
        server.end()

    sessions = Sessions(listener, session)
    served = client_of(listener)[0].run()
    sessions.finish()
    assert (served.requests, served.structures) == (2, 10)


def test_a_server_without_init_and_status(listener):
    def session(server):
        server.ask(np.eye(3)[None], np.ones((1, ATOMS, 3)), batch=False)
        energies, _, _ = server.answer(1, ATOMS)
        assert energies[0] == 6.0
        server.end()

    sessions = Sessions(listener, session)
    assert client_of(listener)[0].run().requests == 1
    sessions.finish()


def test_it_reconnects_after_a_lost_connection(listener):
    def killed_while_it_waits(server):
        begin(server)
        one_request(server)
        server.ask(np.eye(3)[None], np.ones((1, ATOMS, 3)), batch=False)

    def killed_inside_of_a_message(server):
        begin(server)
        server.send(message("POSDATA"), b"\0" * 100)

    def ends(server):
        begin(server)
        one_request(server, seed=4)
        server.end()

    sessions = Sessions(listener, killed_while_it_waits, killed_inside_of_a_message, ends)
    client, said = client_of(listener)
    served = client.run()
    sessions.finish()
    assert served.lost == 2
    assert len(said) == 5
    assert said[1].startswith(f"lost the connection to {client.address} (")
    assert said[1].endswith("trying to reconnect for 5 s")


def test_without_a_server_it_ends_in_time(tmp_path):
    address = Address.parse(f"unix:{tmp_path}/none")
    client = Client(Springs(), address, wait=0.5, report=print)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"no i-PI server at the Unix socket .*none within 0.5 s: No such file"):
        client.run()
    assert time.monotonic() - start < 20


def test_a_server_that_only_hangs_up_does_not_keep_it_for_ever(listener):
    def hangs_up(server):
        pass

    def gone(server):
        listener.close()

    Sessions(listener, *[hangs_up] * 3, gone)
    client, _ = client_of(listener, wait=1.0)
    with pytest.raises(ConnectionError, match="no i-PI server at 127.0.0.1:[0-9]+ within 1 s"):
        client.run()
    assert client.served.requests == 0
    assert client.served.lost >= 1


def test_messages_out_of_turn_are_refused(listener):
    def session(server):
        begin(server)
        server.send(message("GETFORCE"))
        server.stream.read(1)  # until the client closes

    sessions = Sessions(listener, session)
    with pytest.raises(ValueError, match="expected a message .* that fits the state READY, got 'GETFORCE'"):
        client_of(listener)[0].run()
    sessions.finish()


def test_a_failed_evaluation_ends_the_client_and_closes_the_connection(listener):
    def session(server):
        begin(server)
        server.ask(np.eye(3)[None], np.ones((1, ATOMS + 1, 3)), batch=False)
        with suppress(ConnectionResetError):
            assert server.stream.read(1) == b""

    sessions = Sessions(listener, session)
    with pytest.raises(ValueError, match="must have the 4 atoms of the file, got 5"):
        client_of(listener)[0].run()
    sessions.finish()


@pytest.mark.parametrize("wait", [-1.0, float("nan"), float("inf")])
def test_the_time_must_be_a_number_of_seconds(wait):
    with pytest.raises(ValueError, match="wait must be a number of seconds >= 0, got"):
        Client(Springs(), Address(path="/none"), wait=wait, report=print)
