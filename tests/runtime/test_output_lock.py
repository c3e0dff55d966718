"""One process at a time holds an output, and no longer than it lives."""

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from torchmdx.runtime.output_lock import OutputLock

HOLD = (
    "import sys; from torchmdx.runtime.output_lock import OutputLock as L; l = L(sys.argv[1]); print(1, flush=True); "
)


def holding(output) -> subprocess.Popen:
    """Another process that holds an output until it is killed or its input ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLD + "sys.stdin.read(); l.close()", str(output)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "1\n"
    return process


def test_another_process_is_named_and_does_not_block_after_its_end(tmp_path):
    output = tmp_path / "run"
    for end in (lambda process: process.send_signal(signal.SIGKILL), lambda process: process.stdin.close()):
        process = holding(output)
        with pytest.raises(BlockingIOError) as caught:
            OutputLock(output)
        holder = f"process {process.pid} on {socket.gethostname()}, since 2"
        said = str(caught.value)
        assert said.startswith(f"only one run at a time may write an output, and {holder}")
        assert said.endswith(f", holds {str(output)!r} ({output}.lock); start again when that process has ended")
        OutputLock(tmp_path / "run2").close()
        with process:  # waits and closes its pipes
            end(process)
        OutputLock(output).close()
        assert os.listdir(tmp_path) == []


def test_the_job_of_a_queue_system_is_named(tmp_path, monkeypatch):
    """After a requeue the earlier job may still be writing: its number is what the user can look up."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with OutputLock(tmp_path / "run"):
        with pytest.raises(BlockingIOError, match=r"process \d+ on .*, job 4711, since 20.*, holds '.*run'"):
            OutputLock(tmp_path / "run")


def test_the_same_process_is_refused_as_well(tmp_path):
    with OutputLock(tmp_path / "run") as lock:
        with pytest.raises(BlockingIOError, match=f"process {os.getpid()} on"):
            OutputLock(tmp_path / "run")
        assert lock.path.exists()
    lock.close()
    assert not lock.path.exists()


def test_a_lock_that_was_removed_while_it_was_opened_is_not_taken(tmp_path, monkeypatch):
    """Its holder ends between the opening of the file and the lock: another one may hold the file of that name."""
    import fcntl

    first, real, others = OutputLock(tmp_path / "run"), fcntl.flock, []

    def late(descriptor, how):
        if not others:
            first.close()
            others.append(None)
            others[0] = OutputLock(tmp_path / "run")
        return real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(BlockingIOError):
        OutputLock(tmp_path / "run")
    others[0].close()
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    import fcntl

    def none(descriptor, how):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.warns(UserWarning, match=r"run.lock' has no locks \(Operation not supported\): a second run"):
        OutputLock(tmp_path / "run").close()


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no/run\.lock"):
        OutputLock(tmp_path / "no" / "run")
