"""Extended XYZ files read by several processes, in order and with bounded memory."""

from __future__ import annotations

import io
import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from pathlib import Path

from torchmdx.datasets.ase_files import Seen, structures_of
from torchmdx.datasets.blocks import Blocks, FrameBlock, Keys, Unreadable
from torchmdx.datasets.usable import joined

FRAMES, BYTES = 512, 1 << 22  # of a part, whichever comes first
WAITING = 2  # parts for each process that are read, or wait to be taken

Part = tuple[list[FrameBlock | Unreadable], Seen]


def read_parallel(path: Path, keys: Keys, processes: int) -> Blocks:
    """The same blocks as `ase_files.read`, joined. Raises the same errors."""
    seen = Seen(repr(str(path)), keys)
    seen.require_names()
    context = multiprocessing.get_context("spawn")
    waiting: deque[Future[Part]] = deque()
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        try:
            for start, end, first in parts_of(path):
                waiting.append(pool.submit(read_part, path, keys, start, end, first))
                while len(waiting) > WAITING * processes:
                    yield from _taken(waiting, seen)
            while waiting:
                yield from _taken(waiting, seen)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    yield from seen.stated()
    yield from seen.remarks()


def _taken(waiting: deque[Future[Part]], seen: Seen) -> Iterator[FrameBlock | Unreadable]:
    blocks, own = waiting.popleft().result()
    seen.merge(own)
    yield from blocks


def parts_of(path: Path) -> Iterator[tuple[int, int | None, int]]:
    """(first byte, byte after the last one, number of the first frame) of parts with whole frames.

    The last part ends with the file (None), whatever is wrong with its text.
    """
    start = first = number = position = 0
    with path.open("rb") as lines:
        while True:
            line = lines.readline()
            try:
                count = int(line)
            except ValueError:
                break
            body = list(islice(iter(lines.readline, b""), count + 1)) if count >= 0 else []
            if len(body) <= count:
                break
            position, number = position + len(line) + sum(map(len, body)), number + 1
            if number - first >= FRAMES or position - start >= BYTES:
                yield start, position, first
                start, first = position, number
    if start == 0 or path.stat().st_size > start:
        yield start, None, first


def read_part(path: Path, keys: Keys, start: int, end: int | None, first: int) -> Part:
    """The blocks of a part, and what its frames have."""
    with path.open("rb") as file:
        file.seek(start)
        text = (file.read() if end is None else file.read(end - start)).decode("utf-8", errors="replace")
    seen = Seen(repr(str(path)), keys)
    found = (
        seen.take(first + k, structure)
        for k, structure in enumerate(structures_of(io.StringIO(text), str(path), first=first))
    )
    blocks = [one for one in joined(found) if isinstance(one, (FrameBlock, Unreadable))]
    return blocks, seen
