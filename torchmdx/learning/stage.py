"""Stages: folders with the hashes of what went in, and of what came out once they are complete."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchmdx.runtime.damaged_file import naming, parse_json
from torchmdx.runtime.files import write_whole

INPUTS, DONE = "inputs.json", "done.json"
SPENT = "spent.json"  # s, of sessions that a signal has ended
CHUNK = 1 << 20


def sha256(path: Path) -> str:
    """Of the content of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


@dataclass
class StageFolder:
    """A step of a run in a folder of its own.

    `inputs.json` has the settings it depends on and the hashes of the files it reads, and is there from the beginning.
    `done.json` is written last, with results and the hashes of output files: without it the stage is not complete, and
    is continued from what it has left.

    Args:
        settings: As JSON values.
        files: That are read, by name.
    """

    folder: Path
    settings: Mapping[str, Any]
    files: Mapping[str, Path] = field(default_factory=dict)

    def begin(self) -> None:
        """Creates the folder, or checks that it is that of the same inputs.

        Raises:
            FileExistsError: For a folder of other inputs; names what differs.
        """
        inputs = self._inputs()
        path = self.folder / INPUTS
        if path.exists():
            _require_same(self.folder, read_json(path), inputs)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(path, inputs)
        for partial in self.folder.glob(".*.part"):  # of a process that was killed while it wrote a file
            partial.unlink()
        self._began = time.monotonic()

    @property
    def result(self) -> dict[str, Any] | None:
        """The results of a complete stage; None of another one.

        Raises:
            ValueError: If an output has changed since; names it.
        """
        path = self.folder / DONE
        if not path.exists():
            return None
        done = read_json(path)
        for name, digest in done["outputs"].items():
            if not (self.folder / name).is_file() or sha256(self.folder / name) != digest:
                raise ValueError(
                    f"{str(self.folder / name)!r} must be as its stage wrote it, with SHA-256 {digest[:12]}..., but "
                    f"was changed or removed: restore it, or remove the folder {str(self.folder)!r} and those of later "
                    "stages"
                )
        found: dict[str, Any] = done["result"]
        return found | {"seconds": done["seconds"]}

    def finish(self, result: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Marks the stage as complete. outputs: names of files in the folder that later stages read."""
        seconds = self._spent() + time.monotonic() - self._began
        digests = {name: sha256(self.folder / name) for name in outputs}
        write_json(self.folder / DONE, {"result": result, "outputs": digests, "seconds": seconds})
        (self.folder / SPENT).unlink(missing_ok=True)
        return {**read_json(self.folder / DONE)["result"], "seconds": seconds}

    def pause(self) -> None:
        """Keeps the time spent so far, for a stage that a signal has stopped."""
        write_json(self.folder / SPENT, self._spent() + time.monotonic() - self._began)

    def empty(self, *keep: str) -> None:
        """Removes everything but the inputs and the names to keep: what cannot be continued."""
        for path in self.folder.iterdir():
            if path.name in (INPUTS, *keep):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _spent(self) -> float:
        path = self.folder / SPENT
        return float(read_json(path)) if path.exists() else 0.0

    def _inputs(self) -> dict[str, Any]:
        files = {name: sha256(path) for name, path in self.files.items()}
        inputs: dict[str, Any] = json.loads(json.dumps({"settings": dict(self.settings), "files": files}))
        return inputs


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file atomically."""
    write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises ValueError that names it for another one."""
    with naming(path):
        return parse_json(path.read_text())


def _require_same(folder: Path, before: Any, now: dict[str, Any]) -> None:
    for kind in ("files", "settings"):
        then, given = before[kind], now[kind]
        for name in sorted(then.keys() | given.keys()):
            if then.get(name) != given.get(name):
                what = (
                    f"another content of {name}"
                    if kind == "files"
                    else f"{name} {then.get(name)!r}, got {given.get(name)!r}"
                )
                raise FileExistsError(
                    f"{str(folder)!r} was made with {what}: use the same, or another output.directory"
                )
