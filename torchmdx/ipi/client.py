"""A client of the i-PI protocol: evaluates the structures that a server sends, until the server ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torchmdx.ipi.address import Address
from torchmdx.ipi.beads import Beads
from torchmdx.ipi.wire import ConnectionLost, Numbers, Wire

PAUSE = 0.2  # seconds between attempts to connect
LONGEST_ATTEMPT = 10.0  # seconds

Results = tuple[Numbers, Numbers, Numbers]


@dataclass
class Served:
    """What a client has done: requests, structures, seconds of evaluation, connections that were lost."""

    requests: int = 0
    structures: int = 0
    seconds: float = 0.0
    lost: int = 0


class Client:
    """Serves `beads` to the i-PI server at an address.

    Args:
        wait: Seconds for which it tries to reach the server, at first and after a lost connection. A connection that is
            closed before anything was evaluated does not begin that time anew.
        report: Is given a line of text about every connection. `served` counts, also after an error.
    """

    def __init__(self, beads: Beads, address: Address, *, wait: float, report: Callable[[str], None]) -> None:
        if not 0 <= wait < float("inf"):
            raise ValueError(f"wait must be a number of seconds >= 0, got {wait}")
        self.beads, self.address, self.wait, self.report = beads, address, wait, report
        self.served = Served()
        self._deadline = 0.0

    def run(self) -> Served:
        """Serves until the server says EXIT.

        The connection is closed whatever happens, so that the server gives an unanswered request to another client.

        Raises:
            ConnectionError: If none can be reached, and errors of evaluations.
        """
        self._deadline = time.monotonic() + self.wait
        while True:
            wire, before = self._connect(), self.served.requests
            self.report(f"connected to {self.address}")
            try:
                self._converse(wire)
                return self.served
            except ConnectionLost as error:
                self.served.lost += 1
                if self.served.requests > before:
                    self._deadline = time.monotonic() + self.wait
                left = max(0.0, self._deadline - time.monotonic())
                self.report(f"lost the connection to {self.address} ({error}); trying to reconnect for {left:.0f} s")
                time.sleep(min(PAUSE, left))
            finally:
                wire.close()

    def _connect(self) -> Wire:
        while True:
            left = self._deadline - time.monotonic()
            try:
                return Wire(self.address.connect(min(max(left, PAUSE), LONGEST_ATTEMPT)))
            except OSError as error:
                if time.monotonic() + PAUSE > self._deadline:
                    raise ConnectionError(
                        f"no i-PI server at {self.address} within {self.wait:g} s: {error.strerror or error}"
                    ) from error
                time.sleep(PAUSE)

    def _converse(self, wire: Wire) -> None:
        """Answers messages until EXIT. Raises ConnectionLost; ValueError for a message out of turn."""
        # INIT says how many structures a request has; servers that send none skip it after READY.
        state, batch = "NEEDINIT", None
        results: Results | None = None
        while True:
            message = wire.header()
            if message == "EXIT":
                return
            if message == "STATUS":
                wire.status(state)
            elif message == "INIT":
                batch, state = wire.initial(), "READY"
            elif message == "POSDATA" and results is None:
                results = self._evaluate(wire, batch)
                state = "HAVEDATA"
            elif message == "GETFORCE" and results is not None:
                wire.forces(*results)
                results, state = None, "READY"
            else:
                raise ValueError(
                    f"expected a message of the i-PI protocol that fits the state {state}, got {message!r}"
                )

    def _evaluate(self, wire: Wire, batch: int | None) -> Results:
        cells, positions = wire.structures(self.beads.num_atoms, batch)
        start = time.perf_counter()
        results = self.beads(positions, cells)
        self.served.seconds += time.perf_counter() - start
        self.served.requests += 1
        self.served.structures += len(positions)
        return results
