"""`torchmdx serve`: evaluates a potential for a program that moves the atoms."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from torchmdx.commands.options import add_index, add_model_options, coulomb_treatment, model_of, structure_of
from torchmdx.runtime.wording import counted

if TYPE_CHECKING:
    from torchmdx.ipi.client import Served

INTERRUPTED = 130  # exit status by convention of shells: 128 + SIGINT


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="evaluate a potential for i-PI",
        description="Connects to an i-PI server and answers its requests with energy, forces and virial until the "
        "server ends the run. FILE has the elements, the order of atoms, the periodic directions and the charge; "
        "positions and cells come from the server. If the connection is lost, the client reconnects.",
        epilog="i-PI's <ffsocket> with a batch_size sends several structures at a time, which are evaluated together. "
        "ASE's SocketIOCalculator is a server too. Ctrl-C closes the connection.",
    )
    parser.add_argument("file", metavar="FILE", help="structure file, in any format that ASE reads")
    parser.add_argument(
        "--ipi",
        required=True,
        metavar="ADDRESS",
        help="unix:NAME, the Unix socket /tmp/ipi_NAME (or unix:/PATH), or HOST:PORT",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds for which to try to connect, and to reconnect after a lost connection (default: 60)",
    )
    add_index(parser)
    add_model_options(parser, dtype="float32")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from torchmdx.ipi.address import Address
    from torchmdx.ipi.beads import load_beads
    from torchmdx.ipi.client import Client

    address = Address.parse(options.ipi)
    record = structure_of(options)
    beads = load_beads(
        model_of(options),
        record.atoms,
        dtype=options.dtype,
        device=options.device,
        charge=record.charge,
        **coulomb_treatment(options),
    )
    client = Client(beads, address, wait=options.wait, report=_report)
    formula = record.atoms.symbols.get_chemical_formula("reduce")
    _report(f"elements and their order are those of {options.file}, {formula}; a server sends positions only")
    try:
        client.run()
    except KeyboardInterrupt:
        _report(f"interrupted after {_summary(client.served)}")
        return INTERRUPTED
    except BaseException:
        _report(f"stopped after {_summary(client.served)}")
        raise
    _report(f"the server ended the run after {_summary(client.served)}")
    return 0


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _summary(served: Served) -> str:
    """Such as "1,200 structures in 150 requests, 8.1 ms per request"."""
    mean = f", {1e3 * served.seconds / served.requests:.1f} ms per request" if served.requests else ""
    lost = f", {counted(served.lost, 'lost connection')}" if served.lost else ""
    return f"{counted(served.structures, 'structure')} in {counted(served.requests, 'request')}{mean}{lost}"
