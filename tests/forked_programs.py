"""Programs in processes that are forks of one that has imported torch: two seconds less for each.

`command` is what to start instead of `python -m torchmdx.commands.cli`, also by MPI, and `python` what to start instead
of `python -W ignore` with `-c CODE`, for code that depends neither on how Python starts nor on what torch reads when it
is imported. The process started hands its folder, environment, arguments and files to the server, waits for the fork,
and ends as that does; it is quick because it imports nothing. Signals that a program may answer are passed on to the
fork; if the process is killed, so is the fork. What a test must not take is the number of this process, which the fork
does not have.
"""

import array
import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path
from typing import NoReturn

LATEST_START = 120  # s
SIZE = 1 << 20  # bytes of a request: an environment and arguments
PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_server: list[tuple[subprocess.Popen, str]] = []


def command() -> list[str]:
    """The first words of a command line, before the arguments of `torchmdx`. Starts the server if it does not run."""
    return [sys.executable, "-S", "-E", __file__, "run", _address()]


def python() -> list[str]:
    """The first words of a command line, before `-c`, the code and its arguments. Warnings are ignored."""
    return [sys.executable, "-S", "-E", __file__, "python", _address()]


def _address() -> str:
    """Of the server, which is started if it does not run."""
    if not _server:
        folder = tempfile.mkdtemp(prefix="forks")
        address = f"{folder}/socket"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen([sys.executable, __file__, "serve", address], env=environment)
        _server.append((process, address))
        atexit.register(_stop, process, folder)
        start = time.monotonic()
        while not Path(address).exists():
            if process.poll() is not None or time.monotonic() - start > LATEST_START:
                raise RuntimeError("the server of forked programs has not started")
            time.sleep(0.05)
    return _server[0][1]


def _stop(process: subprocess.Popen, folder: str) -> None:
    process.terminate()
    process.wait()
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()


def _ask(address: str, arguments: list[str]) -> int:
    """Of the process started: the exit status of the fork, negative for a signal."""
    # The connection of a process to MPI's launcher is an open file.
    files = [0, 1, 2, *([int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else [])]
    request = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SIZE)
        there.connect(address)
        there.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: there.send(str(number).encode()))
        answer = there.recv(64)
    return int(answer or b"1")


def _serve(address: str) -> None:
    import ase.build
    import ase.io  # noqa: F401

    import torchmdx.commands.cli
    import torchmdx.dynamics.relaxation
    import torchmdx.evaluation.derivatives
    import torchmdx.lammps.session
    import torchmdx.step.captured_step
    import torchmdx.training.run  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as here:
        here.bind(f"{address}.new")
        here.listen(64)
        os.rename(f"{address}.new", address)
        while True:
            there, _ = here.accept()
            if os.fork() == 0:
                here.close()
                _follow(there)
            there.close()
            with contextlib.suppress(ChildProcessError):  # there are no others
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _follow(there: socket.socket) -> None:
    """Makes the fork, passes signals on and answers with its status; kills it if the process that asked has ended."""
    request, files, _, _ = socket.recv_fds(there, SIZE, 8)
    child = os.fork()
    if child == 0:
        there.close()
        os.setsid()  # as MPI's launcher does: Linux divides the processors among sessions
        _become(*json.loads(request), files)
    for file in files:
        os.close(file)
    with open(os.pidfd_open(child), closefd=True) as ended:
        while True:
            ready, _, _ = select.select([ended, there], [], [])
            number = b"" if ended in ready else there.recv(64)
            if not number:
                break
            os.kill(child, int(number))
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended in ready:
        there.send(str(status).encode())
    os._exit(0)


def _become(arguments: list[str], folder: str, environment: dict[str, str], files: list[int]) -> NoReturn:
    """Runs the command in this process, which then ends."""
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    if len(files) > 3:
        os.set_inheritable(files[3], True)
        environment["PMI_FD"] = str(files[3])
    os.environ.clear()
    os.environ.update(environment)
    sys.path += filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(folder)
    import torch

    from torchmdx.commands.cli import main

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        warnings.simplefilter("ignore")
        exec(compile(arguments[1], "<string>", "exec"), vars(sys.modules["__main__"]))
        sys.exit()
    sys.argv = arguments
    sys.exit(main())  # not os._exit: MPI says good-bye to its launcher at the exit of the program


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    words = sys.argv[3:]
    found = _ask(sys.argv[2], words if sys.argv[1] == "python" else ["torchmdx", *words])
    if found < 0:
        os.kill(os.getpid(), -found)
    sys.exit(found)
