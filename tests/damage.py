"""Damages files of every format that torchmdx reads, from a seed, and reads them.

    python tests/damage.py FORMAT,FORMAT,... COUNT [SEED]

Each damaged file has to load, with a sound result, or to raise a ValueError that names it, in bounded time and memory.
"""

import io
import json
import math
import random
import resource
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

from damage_formats import FORMATS, Format

MOST_SECONDS = 20.0  # of the processor, for one file; a sound one takes hundredths
MEMORY = 6 << 30  # bytes of addresses; torch and its libraries take most
HOSTILE = (
    *(-1, 0, 1, 2, 7, 255, 10**6, 10**9, 10**12, 2**31, 2**63, 2**64 - 1, 10**30, 10**400),
    *(-1.5, 1e-300, 1e300, 0.1, math.nan, math.inf, -math.inf, True, False, None),
    *("", "x", "0", "²", "x" * 3000, "tensornet2", "coulomb", [], {}, [[]], [None], [1, 2], {"a": 1}, [1e9] * 3000),
)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flips, overwrites, cuts, repeats or removes bytes somewhere; more often near the ends, where heads are."""
    content = bytearray(data)
    size = len(content)
    if not size:
        return draw.randbytes(8)

    def place() -> int:
        near = min(size, draw.choice((16, 128, 1024, size)))
        return draw.randrange(near) if draw.random() < 0.7 else size - 1 - draw.randrange(near)

    kind = draw.choice(("flip", "flip", "flip", "run", "cut", "repeat", "remove", "number"))
    if kind == "flip":
        for _ in range(draw.choice((1, 1, 2, 8))):
            content[place()] ^= 1 << draw.randrange(8)
    elif kind == "run":
        start, length = place(), draw.choice((1, 4, 8, 64))
        content[start : start + length] = bytes([draw.choice((0, 1, 0x7F, 0x80, 0xFF))]) * len(
            content[start : start + length]
        )
    elif kind == "cut":
        del content[place() :]
    elif kind == "repeat":
        start = place()
        content[start:start] = content[start : start + draw.choice((1, 16, 200))]
    elif kind == "remove":
        start = place()
        del content[start : start + draw.choice((1, 4, 16, 200))]
    else:
        start, code = place(), draw.choice(("<q", "<d", "<i", ">q"))
        pool = {"d": (math.nan, math.inf, 1e300, -0.0), "q": (-1, 2**62, 10**12), "i": (-1, 2**31 - 1, 10**8)}
        raw = struct.pack(code, draw.choice(pool[code[1]]))
        content[start : start + len(raw)] = raw
    return bytes(content)


def mutate_value(value: object, draw: random.Random) -> object:
    """A value of JSON with one entry somewhere inside exchanged, added or removed; texts that hold JSON are entered."""
    if isinstance(value, str) and value[:1] in ("{", "[") and draw.random() < 0.9:
        try:
            return json.dumps(mutate_value(json.loads(value), draw))
        except ValueError:
            pass
    if isinstance(value, (dict, list)) and value and draw.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        changed, key = type(value)(value), draw.choice(keys)
        if draw.random() < 0.1:
            del changed[key]
        else:
            changed[key] = mutate_value(value[key], draw)
        return changed
    if isinstance(value, dict) and draw.random() < 0.3:
        return {**value, draw.choice(("", "more", "model", "prior")): draw.choice(HOSTILE)}
    if isinstance(value, list) and draw.random() < 0.3:
        return value * draw.choice((2, 50))
    if isinstance(value, str) and draw.random() < 0.1:
        return draw.choice(("[", '{"a":')) * 100_000
    return draw.choice(HOSTILE)


def mutate_zip(data: bytes, draw: random.Random) -> bytes:
    """A zip, whole, one of whose files is damaged, left out, compressed or there twice."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        names = old.namelist()
        # The pickle and the heads of arrays are small among the numbers: each file is chosen as often.
        chosen, how = draw.choice(names), draw.choice(("damage", "damage", "damage", "leave", "compress", "twice"))
        if draw.random() < 0.5:
            chosen = next((name for name in names if name.endswith("data.pkl")), chosen)
        with zipfile.ZipFile(made, "w") as new:
            for name in names:
                content = old.read(name)
                if name == chosen and how == "leave":
                    continue
                if name == chosen and how == "damage":
                    content = mutate_bytes(content, draw)
                bomb = name == chosen and how == "compress"
                new.writestr(name, bytes(1 << 24) if bomb else content, zipfile.ZIP_DEFLATED if bomb else None)
                if name == chosen and how == "twice":
                    new.writestr(name, mutate_bytes(content, draw))
    return made.getvalue()


def mutated(kind: Format, data: bytes, draw: random.Random) -> bytes:
    """A damaged version of a file of a format."""
    ways: list[Callable[[], bytes]] = [lambda: mutate_bytes(data, draw)]
    if kind.unpack is not None and kind.pack is not None:
        unpack, pack = kind.unpack, kind.pack
        ways += [lambda: pack(mutate_value(unpack(data), draw), data)] * 2
    if kind.is_zip:
        ways += [lambda: mutate_zip(data, draw)] * 2
    return draw.choice(ways)()


def fault(kind: Format, path: Path) -> str | None:
    """What is wrong with how a file is read, or None."""
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.read(path)
    except ValueError as error:
        if kind.root(path).name not in str(error):
            return f"an error that does not name the file: {error!s:.300}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {error!s:.300}"
    seconds = time.process_time() - started
    return f"{seconds:.1f} s" if seconds > MOST_SECONDS else None


def faults(kind: Format, count: int, seed: int, folder: Path) -> list[str]:
    """Damages a file `count` times; what was wrong, with the number of the damaged file."""
    path = kind.make(folder)
    whole = path.read_bytes()
    if found := fault(kind, path):
        return [f"whole: {found}"]
    wrong = []
    for number in range(count):
        data = mutated(kind, whole, random.Random(f"{kind.name} {seed} {number}"))
        path.write_bytes(data)
        if found := fault(kind, path):
            wrong.append(f"{kind.name} {seed} {number}: {found}")
    return wrong


def main() -> int:
    names, count, seed = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    failed = False
    for name in names:
        print(f"{name}: ", end="", flush=True)  # before a crash
        with tempfile.TemporaryDirectory() as folder:
            wrong = faults(FORMATS[name], count, seed, Path(folder))
        print("\n".join(wrong[:50]) or f"{count} damaged files, each read or refused", flush=True)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
