"""One process at a time writes an output: a lock that the operating system releases when its process ends."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
import warnings
from io import FileIO
from pathlib import Path

ENDING = ".lock"
# What file systems answer that have no locks.
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
MOST_READ = 1000  # bytes of a lock file
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")  # of Slurm, PBS and LSF
TIME = "%Y-%m-%d %H:%M:%S"


class OutputLock:
    """Holds an output, until it is closed or the process ends, however it ends.

    Example::

        with OutputLock("run"):  # the file run.lock, which is removed at the end
            ...

    Raises BlockingIOError, which names process, host, job of a queue system and time, if another one holds it;
    FileNotFoundError if its folder does not exist. A file that a killed process has left is no obstacle. Warns where
    the file system has no locks.

    Args:
        output: The file, folder or prefix that the files belong to.
    """

    def __init__(self, output: str | Path) -> None:
        self.path = Path(f"{Path(output)}{ENDING}")  # without a slash at the end
        self._output = str(output)
        self._file = self._acquire()

    def close(self) -> None:
        """Releases the output."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):
            self.path.unlink()  # still locked: whoever has opened this file looks whether it is still there
        self._file.close()

    def __enter__(self) -> OutputLock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _acquire(self) -> FileIO:
        while True:
            # Append mode, since another process may have written who it is.
            file = self.path.open("ab+", buffering=0)
            try:
                self._lock(file.fileno())
                if not _is_there(self.path, file.fileno()):
                    file.close()  # its process has ended and removed it since it was opened
                    continue
                file.truncate(0)
                file.write(f"{_holder()}\n".encode())
                return file
            except BaseException:
                file.close()
                raise

    def _lock(self, descriptor: int) -> None:
        try:
            import fcntl
        except ImportError:  # Windows has no such locks
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, MOST_READ, 0).decode(errors="replace").strip() or "another process"
            raise BlockingIOError(
                f"only one run at a time may write an output, and {holder} holds {self._output!r} ({self.path}); "
                "start again when that process has ended"
            ) from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            warnings.warn(
                f"the file system of {str(self.path)!r} has no locks ({error.strerror}): a second run that writes "
                "there at the same time is not detected",
                stacklevel=4,
            )


def _holder() -> str:
    """This process, as its lock names it: with the time, and the job of a queue system that has started it."""
    jobs = [f"job {os.environ[name]}" for name in JOBS if name in os.environ]
    return ", ".join([f"process {os.getpid()} on {socket.gethostname()}", *jobs[:1], f"since {time.strftime(TIME)},"])


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the path leads to the open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
