"""`torchmdx serve` for i-PI itself and for ASE: whole runs, batches, a server that is killed, errors."""

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import ase.build
import ase.io
import forked_programs
import ipi_runs as runs
import numpy as np
import pytest
from ase.calculators.socketio import SocketIOCalculator

import torchmdx
from torchmdx.commands.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ethanol(tmp_path):
    atoms = ase.build.molecule("CH3CH2OH")
    atoms.rattle(0.02, seed=1)
    ase.io.write(tmp_path / "init.xyz", atoms)
    return atoms


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def name() -> str:
    return f"torchmdx_test_{os.getpid()}"


def serve(folder: Path, address: str, *more: str) -> int:
    arguments = ["serve", "--ipi", address, str(folder / "init.xyz"), "--dtype", "float64", "--device", "cpu", *more]
    return main(arguments)


def require_exact(folder: Path, atoms, beads: int) -> None:
    """The mean energies that i-PI wrote are those of the positions that it wrote, to their digits."""
    atoms.calc = torchmdx.Calculator(dtype="float64", device="cpu")
    positions = [runs.frames(folder, f"run.pos_{k}.xyz") for k in range(beads)]
    found = runs.rows(folder)
    assert len(found) == len(positions[0]) > 1
    for step, row in enumerate(found):
        energies = []
        for bead in positions:
            atoms.positions[:] = bead[step][1]
            energies.append(atoms.get_potential_energy())
        assert row[1] == pytest.approx(np.mean(energies), abs=2e-4)


@pytest.mark.nightly_for("3-2")
@pytest.mark.parametrize(("beads", "batch"), [(2, 1), (3, 2)])
def test_a_run_over_a_unix_socket(tmp_path, ethanol, name, beads, batch, capfd):
    pytest.importorskip("ipi.pes")
    runs.write(tmp_path, runs.SOCKET.replace("ADDRESS", name).replace("BATCH", str(batch)), steps=3, beads=beads)
    process = runs.start(tmp_path)
    try:
        assert serve(tmp_path, f"unix:{name}") == 0
    finally:
        runs.finish(tmp_path, process)
    require_exact(tmp_path, ethanol, beads)
    said = capfd.readouterr().err
    assert "elements and their order are those of" in said
    assert "init.xyz, C2OH6; a server sends positions only" in said
    assert f"connected to the Unix socket /tmp/ipi_{name}\n" in said
    requests = 4 * -(-beads // batch)
    assert f"the server ended the run after {requests * batch} structures in {requests} requests, " in said


@pytest.mark.nightly
def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path, ethanol, port, capfd):
    pytest.importorskip("ipi.pes")
    forcefield = runs.SOCKET.replace("'unix'", "'inet'").replace("ADDRESS", "127.0.0.1").replace("BATCH", "1")
    forcefield = forcefield.replace("</address>", f"</address><port>{port}</port>")
    runs.write(tmp_path, forcefield, steps=60)
    processes = [runs.start(tmp_path)]

    def stopped_between_checkpoints() -> bool:
        processes[0].send_signal(signal.SIGSTOP)
        checkpoint = tmp_path / "run.chk"
        return checkpoint.exists() and checkpoint.read_text().rstrip().endswith("</simulation>")

    def kill_and_restart() -> None:
        while not (tmp_path / "run.out").exists() or len((tmp_path / "run.out").read_text().splitlines()) < 10:
            time.sleep(0.01)
        while not stopped_between_checkpoints():  # i-PI does not write them as a whole
            processes[0].send_signal(signal.SIGCONT)
            time.sleep(0.01)
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        processes.append(runs.start(tmp_path, "run.chk"))

    other = threading.Thread(target=kill_and_restart)
    other.start()
    assert serve(tmp_path, f"127.0.0.1:{port}") == 0
    other.join(60)
    runs.finish(tmp_path, processes[1])
    assert "reconnect for 60 s" in (said := capfd.readouterr().err)
    assert ", 1 lost connection" in said
    # i-PI appends to its files, and cuts what it had written after the checkpoint.
    written = [line.split()[0] for line in (tmp_path / "run.out").read_text().splitlines() if line[:1] != "#"]
    assert sorted({int(float(step)) for step in written}) == list(range(61))


def test_a_server_of_ase(tmp_path, ethanol, port, capfd):
    found = {}

    def relax() -> None:
        atoms = ethanol.copy()
        with SocketIOCalculator(port=port) as calculator:
            atoms.calc = calculator
            found["forces"] = [atoms.get_forces()]
            atoms.rattle(0.05, seed=3)
            found["forces"].append(atoms.get_forces())
            found["positions"] = atoms.positions.copy()
            calculator.server.protocol.end()

    server = threading.Thread(target=relax)
    server.start()
    assert serve(tmp_path, f"127.0.0.1:{port}") == 0
    server.join(30)
    assert "2 structures in 2 requests" in capfd.readouterr().err
    for positions, forces in zip((ethanol.positions, found["positions"]), found["forces"], strict=True):
        ethanol.positions[:] = positions
        ethanol.calc = torchmdx.Calculator(dtype="float64", device="cpu")
        np.testing.assert_allclose(forces, ethanol.get_forces(), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("unix:", "--ipi unix:NAME needs the name of a socket, got 'unix:'"),
        ("localhost:99999", "the port of --ipi must be a number from 1 to 65535, got '99999'"),
        ("localhost", "--ipi must be unix:NAME or HOST:PORT, got 'localhost'"),
    ],
)
def test_bad_addresses(tmp_path, ethanol, address, message, capsys):
    assert serve(tmp_path, address) == 2
    assert message in capsys.readouterr().err


def test_no_server(tmp_path, ethanol, port, capsys):
    assert serve(tmp_path, f"127.0.0.1:{port}", "--wait", "0") == 2
    said = capsys.readouterr().err
    assert f"error: no i-PI server at 127.0.0.1:{port} within 0 s: Connection refused" in said
    assert "stopped after 0 structures in 0 requests" in said


def test_an_interruption_closes_the_connection(tmp_path, ethanol, port):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with socket.create_server(("127.0.0.1", port)) as listener:
        words = ["serve", "--ipi", f"127.0.0.1:{port}", str(tmp_path / "init.xyz"), "--device", "cpu"]
        process = subprocess.Popen(
            [*forked_programs.command(), *words], env=environment, stderr=subprocess.PIPE, text=True
        )
        try:
            listener.settimeout(60)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                process.send_signal(signal.SIGINT)
                assert connection.recv(1) == b""
            assert process.wait(30) == 130
            assert process.stderr.read().endswith("interrupted after 0 structures in 0 requests\n")
        finally:
            process.kill()
