"""Several processes (gloo) match one; the loss of a process ends the run with an error."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import made_up
import numpy as np
import pytest
import torch

import torchmdx
from torchmdx.commands.cli import main
from torchmdx.report.history import read_table
from torchmdx.training.state import read_state

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path):
    made_up.store(tmp_path / "st", 60)
    return made_up.config_file(tmp_path, tmp_path / "st")


def command(config, directory, *changes, launcher=("-m", "torchmdx.commands.cli"), **options):
    words = [sys.executable, *launcher, "train", str(config), "--output.directory", str(directory), *changes]
    pipes = dict(stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return subprocess.Popen(words, env=os.environ.copy(), **pipes, **options)


def two_nodes(config, directory, *changes):
    """Two commands that act as two nodes, each in its own session; the first hosts the rendezvous."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    words = ["--nodes", "2", "--training.rendezvous", f"localhost:{port}", *changes]
    first = command(config, directory, *words, start_new_session=True)
    end = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)) == 0:
                break
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)
    return first, command(config, directory, *words, start_new_session=True)


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.two_gpus])])
@pytest.mark.parametrize("by", ["devices", "torchrun"])
def test_two_processes_match_one(config, tmp_path, by, device):
    changes = [
        "--training.device",
        device,
        "--training.precision",
        "float64",
        "--training.epochs",
        "3",
        "--training.validation_batch_size",
        "10",
    ]
    assert main(["train", str(config), "--output.directory", str(tmp_path / "one"), *changes]) == 0
    if by == "devices":
        process = command(config, tmp_path / "two", *changes, "--devices", "2")
    else:
        launcher = (
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "torchmdx.commands.cli",
        )
        process = command(config, tmp_path / "two", *changes, launcher=launcher)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    require_equal(tmp_path / "one", tmp_path / "two")


def require_equal(first, second):
    """Runs with the same losses and weights."""
    for name in ("steps.csv", "epochs.csv"):
        one, two = read_table(first / name), read_table(second / name)
        assert one.keys() == two.keys()
        for column in one:
            np.testing.assert_allclose(two[column], one[column], rtol=1e-6, err_msg=column)
    a, b = (torchmdx.load(place / "last.safetensors").state_dict() for place in (first, second))
    for name in a:
        torch.testing.assert_close(b[name], a[name], rtol=1e-6, atol=1e-8)


@pytest.mark.nightly
def test_two_nodes_match_one(config, tmp_path):
    changes = ["--training.precision", "float64", "--training.epochs", "2", "--training.validation_batch_size", "10"]
    assert main(["train", str(config), "--output.directory", str(tmp_path / "one"), *changes]) == 0
    nodes = two_nodes(config, tmp_path / "two", *changes)
    said = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    # Whichever of them the first process is on tells the end.
    assert sum("best.safetensors" in out for out, _ in said) == 1
    require_equal(tmp_path / "one", tmp_path / "two")


@pytest.mark.nightly
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_node_ends_the_other_with_an_error(config, tmp_path, lost):
    directory = tmp_path / "run"
    nodes = two_nodes(config, directory, "--training.epochs", "500")
    try:
        wait_for_epochs(directory, nodes)
        os.killpg(nodes[lost].pid, signal.SIGKILL)
        _, said = nodes[1 - lost].communicate(timeout=60)
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
            node.communicate()
    assert nodes[1 - lost].returncode == 2
    assert "Traceback" not in said
    assert "checkpoint is intact: continue with --resume" in said
    assert "the nodes must be able to reach localhost:" in said
    done = int(read_table(directory / "epochs.csv")["epoch"][-1])
    changes = ["--training.epochs", str(done + 1), "--resume"]
    assert main(["train", str(config), "--output.directory", str(directory), *changes]) == 0


def wait_for_epochs(directory, processes):
    end = time.monotonic() + 180  # the machine may have other work
    while not (directory / "epochs.csv").exists() or len((directory / "epochs.csv").read_text().splitlines()) < 3:
        assert all(process.poll() is None for process in processes), [p.communicate() for p in processes]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_nodes_need_a_store(config, tmp_path, capsys):
    words = ["train", str(config), "--data.path", "x.xyz", "--output.directory", str(tmp_path / "run")]
    assert main([*words, "--nodes", "2", "--training.rendezvous", "localhost:1"]) == 2
    assert "data.path must be a store for training with several processes, got" in capsys.readouterr().err


def children(pid):
    # -ww: lines of any length, whatever COLUMNS says.
    asked = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)]
    found = subprocess.run(asked, capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "spawn_main" in line]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_lost_worker_or_a_signal_leaves_an_intact_checkpoint(config, tmp_path, number):
    directory = tmp_path / "run"
    process = command(config, directory, "--training.epochs", "500", "--devices", "2")
    wait_for_epochs(directory, [process])
    os.kill(children(process.pid)[-1] if number == signal.SIGKILL else process.pid, number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == 2
        assert "worker 1 (process" in said
        assert "failed: exit code -9. The last checkpoint is intact: continue with --resume" in said
    else:
        assert process.returncode == 128 + number
        assert "continue with --resume" in said
    assert "Traceback" not in said
    done = int(read_table(directory / "epochs.csv")["epoch"][-1])
    changes = ["--training.epochs", str(done + 2), "--resume"]
    assert main(["train", str(config), "--output.directory", str(directory), *changes]) == 0
    epochs = read_table(directory / "epochs.csv")["epoch"]
    assert epochs.tolist() == list(range(1, done + 3))


SCRIPTS = Path(__file__).parents[2] / "examples" / "cluster"


@pytest.mark.nightly_for("train_torchrun.sh")
@pytest.mark.parametrize("script", ["train.slurm", "train_torchrun.sh"])
def test_scripts_for_clusters_start_and_continue_a_run(config, tmp_path, script):
    """With two processes on the CPU; Slurm's commands are stand-ins that print this host and run the command here."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "scontrol": "echo localhost",
        "srun": 'exec "$@"',
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    slurm = {"SLURM_JOB_NODELIST": "here", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_ID": "7"}
    variables = os.environ | slurm | {"PROCESSES": "2", "PORT": str(port), "PATH": f"{tools}:{os.environ['PATH']}"}
    for epochs in ("1", "2"):
        words = [str(SCRIPTS / script), str(config), str(tmp_path / "run"), "--training.epochs", epochs]
        done = subprocess.run(["bash", *words], env=variables, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
    info = read_state(tmp_path / "run" / "state.safetensors")[1]
    assert (info["epoch"], info["ranks"]) == (2, 2)
    assert read_table(tmp_path / "run" / "epochs.csv")["epoch"].tolist() == [1, 2]
