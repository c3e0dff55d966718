"""A whole run of `torchmdx label`: from structures or molecules to a file of labelled structures."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.conformers import check_smiles, require_rdkit
from torchmdx.datasets.labelling.dask_workers import DaskWorkers, require_dask
from torchmdx.datasets.labelling.file_folders import remove_empty
from torchmdx.datasets.labelling.journal import Journal
from torchmdx.datasets.labelling.ledger import Failure, Ledger
from torchmdx.datasets.labelling.output import require_output, write_failures, write_structures
from torchmdx.datasets.labelling.progress import LabellingProgress
from torchmdx.datasets.labelling.sampling import Sampling
from torchmdx.datasets.labelling.sources import StructureFiles
from torchmdx.datasets.labelling.stages import LabellingStage, LabelStage, SampleStage, frames_of_files
from torchmdx.datasets.labelling.work import LabelWork, conditions
from torchmdx.datasets.labelling.workers import Workers, usable_cores
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.runtime.progress_line import ProgressLine

SOON = 2.0  # s
KEEP_FILES = ("all", "failed")


@dataclass(frozen=True)
class Paths:
    """An output and the files next to it."""

    output: Path

    @property
    def journal(self) -> Path:
        return self._next_to(".journal")

    @property
    def log(self) -> Path:
        return self._next_to(".workers.log")

    @property
    def folder(self) -> Path:
        """Of the files of calculators that work through files, with a folder for each frame."""
        return self._next_to(".files")

    @property
    def failures(self) -> Path:
        return self._next_to(".failed.csv")

    def _next_to(self, ending: str) -> Path:
        return self.output.with_name(self.output.name + ending)


@dataclass(frozen=True)
class Crew:
    """How tasks are run. num_workers: processes. timeout: s without a message from a task. stream: for progress.

    Attributes:
        stopped: Called often; once it returns True, running tasks are cancelled.
        dask: Address of a scheduler of dask.distributed, or a scheduler file: its workers replace own processes.
    """

    num_workers: int
    timeout: float | None
    stream: TextIO
    stopped: Callable[[], bool] = lambda: False
    dask: str | None = None

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError(f"--workers must be at least 1, got {self.num_workers}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"--timeout must be > 0 s, got {self.timeout}")

    def workers(self, work: LabelWork, log: Path) -> Workers | DaskWorkers:
        """Own processes, or those of a cluster; used in a `with` block."""
        if self.dask is None:
            return Workers(work, self.num_workers, timeout=self.timeout, log=log, stopped=self.stopped)
        shared = replace(work, folder=work.folder.resolve(), place=Path.cwd(), agreed=conditions(work.choice))
        return DaskWorkers(shared, self.dask, timeout=self.timeout, log=log, stopped=self.stopped, stream=self.stream)


@dataclass(frozen=True)
class Summary:
    """Results of a call of `label`. num_frames: in total, as far as known; complete: whether all work is done.

    Attributes:
        is_read: False if it was stopped while it read the files.
    """

    paths: Paths
    num_frames: int
    num_labelled: int
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    complete: bool
    is_read: bool = True


def label(
    files: StructureFiles,
    output: Path,
    choice: Choice,
    *,
    smiles: Sequence[str] = (),
    sampling: Sampling | None = None,
    crew: Crew | None = None,
    retry_failed: bool = False,
    overwrite: bool = False,
    keep_files: str = "all",
) -> Summary:
    """Labels frames of files, or geometries sampled from them and from SMILES; continues a run that was stopped.

    Processes are spawned: a script must call this under `if __name__ == "__main__"`. keep_files: "all" files of
    calculators that work through files, or those of frames that "failed".

    Raises:
        ValueError: Also if another process writes this output.
        ImportError: Also if another process writes this output.
        OSError: Also if another process writes this output.
    """
    crew = crew or Crew(choice.num_workers or usable_cores(), None, sys.stderr)
    if keep_files not in KEEP_FILES:
        raise ValueError(f"--keep-files must be one of {', '.join(KEEP_FILES)}, got {keep_files!r}")
    require_output(output)
    with OutputLock(output):
        return _label(files, Paths(output), choice, smiles, sampling, crew, retry_failed, overwrite, keep_files)


def _label(
    files: StructureFiles,
    paths: Paths,
    choice: Choice,
    smiles: Sequence[str],
    sampling: Sampling | None,
    crew: Crew,
    retry_failed: bool,
    overwrite: bool,
    keep_files: str,
) -> Summary:
    output = paths.output
    if output.exists() and not paths.journal.exists() and not overwrite:
        raise FileExistsError(f"--output must be new, got {str(output)!r}; --overwrite replaces it")
    if crew.dask is not None:
        require_dask()
    choice.require()
    _check_smiles(smiles, sampling)
    try:
        counts, digest = _survey(files, crew)
    except _StoppedReading:
        return Summary(paths, 0, 0, (), (), complete=False, is_read=False)
    settings: dict[str, Any] = {"structures": sum(counts), "SHA-256 of structures": digest, **choice.settings()}
    if sampling is not None:
        text = "\n".join(smiles) + f" {files.multiplicity}"
        settings |= {"SHA-256 of SMILES": hashlib.sha256(text.encode()).hexdigest(), **sampling.settings()}
    with Journal(paths.journal, settings, anew=overwrite) as journal:
        ledger = Ledger(journal)
        notes = _remarks(journal)
        try:
            if retry_failed:
                ledger.forget_failures()
            work = LabelWork(choice, paths.folder, sampling, keep_labelled=keep_files == "all")
            with crew.workers(work, paths.log) as workers:
                if sampling is None:
                    stage, complete = LabelStage(ledger, frames_of_files(ledger, files, counts), sum(counts)), True
                else:
                    molecules = SampleStage(ledger, files, counts, smiles)
                    complete = _do(molecules, workers, crew.stream)
                    stage = LabelStage(ledger, molecules.frames, molecules.num_frames)
                complete = complete and _do(stage, workers, crew.stream)
        finally:
            _tidy(paths, keep_journal=not ledger.is_empty)
        if complete:
            _finish(paths, ledger)
        notes += ledger.notes()
        failures = tuple(ledger.failures[key] for key in sorted(ledger.failures))
    return Summary(paths, stage.total, ledger.num_labelled, failures, tuple(notes), complete)


class _StoppedReading(Exception):
    """A signal has come before anything was labelled."""


def _survey(files: StructureFiles, crew: Crew) -> tuple[list[int], str]:
    """Reads all files once; shows progress if that takes more than SOON. Raises _StoppedReading."""
    line = ProgressLine(crew.stream)
    began = line.clock()

    def told(count: int) -> None:
        if crew.stopped():
            raise _StoppedReading
        if line.clock() - began > SOON and line.due():
            line.draw(f"{count:,} frames read")

    try:
        return files.survey(told)
    finally:
        line.finish()


def _do(stage: LabellingStage, workers: Workers | DaskWorkers, stream: TextIO) -> bool:
    """Runs a stage. Returns whether it was completed."""
    if stage.done == stage.total:
        return True
    progress = LabellingProgress(stream, stage.things, stage.done, stage.total)
    progress.show()
    try:
        for outcome in workers.run(stage.tasks()):
            if outcome is not None:
                stage.take(outcome)
                progress.advance(failed=outcome.error is not None)
            progress.show()
    finally:
        progress.finish()
    return stage.done == stage.total


def _check_smiles(smiles: Sequence[str], sampling: Sampling | None) -> None:
    if not smiles:
        return
    if sampling is None:
        raise ValueError(f"SMILES need --sample, which generates geometries, got {smiles[0]!r} without")
    require_rdkit()
    for text in smiles:
        check_smiles(text)


def _remarks(journal: Journal) -> list[str]:
    if not journal.discarded:
        return []
    return [f"{journal.discarded} bytes of {journal.path} were incomplete or damaged; their frames are computed again"]


def _finish(paths: Paths, ledger: Ledger) -> None:
    """Writes the output and the list of failures; removes the journal if there are none."""
    if ledger.num_labelled:
        write_structures(paths.output, ledger.labelled())
    if ledger.failures:
        write_failures(paths.failures, (ledger.failures[key] for key in sorted(ledger.failures)))
    else:
        paths.failures.unlink(missing_ok=True)
        paths.journal.unlink(missing_ok=True)


def _tidy(paths: Paths, *, keep_journal: bool) -> None:
    """Removes empty files and folders."""
    remove_empty(paths.folder)
    if paths.log.exists() and not paths.log.stat().st_size:
        paths.log.unlink()
    if not keep_journal:
        paths.journal.unlink(missing_ok=True)
