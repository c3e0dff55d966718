"""The options of LAMMPS's command line: which there are, and how many values each takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn


@dataclass(frozen=True)
class Option:
    """long and short: names. values: names of values that it needs. more: others may follow, up to the next option."""

    long: str
    short: str
    values: str
    about: str
    more: bool = False

    def line(self) -> str:
        """For a list of options, as argparse would write it."""
        shown = " ".join(filter(None, (f"{self.long}, {self.short}", self.values, "..." * self.more)))
        return f"  {shown:<32}" + ("\n" + " " * 34) * (len(shown) > 32) + f"  {self.about}"

    @property
    def least(self) -> int:
        """Values that it needs."""
        return len(self.values.split())


OPTIONS = (
    Option("-in", "-i", "FILE", "input"),
    Option("-var", "-v", "NAME VALUE", "variable of the input", more=True),
    Option("-log", "-l", "FILE", "log (default: log.lammps), or none"),
    Option("-screen", "-sc", "FILE", "file for what LAMMPS prints, or none"),
    Option("-echo", "-e", "STYLE", "where commands are repeated: none, screen, log or both"),
    Option("-nonbuf", "-nb", "", "writes log and screen without buffers"),
    Option("-cite", "-c", "STYLE", "where papers to cite are listed: none, screen, log, both or a file"),
    Option("-nocite", "-nc", "", "no list of papers to cite"),
    Option("-skiprun", "-sr", "", "checks the input: run and minimize take no steps"),
    Option("-suffix", "-sf", "STYLE", "variants of LAMMPS's styles, such as omp", more=True),
    Option("-package", "-pk", "STYLE", "arguments of the command package, such as omp 4", more=True),
    Option("-kokkos", "-k", "on|off", "KOKKOS, in a LAMMPS that has it", more=True),
    Option("-partition", "-p", "SIZE", "partitions of processes, such as 2x1, for replicas", more=True),
    Option("-plog", "-pl", "NAME", "logs of partitions: NAME.0, NAME.1 and so on"),
    Option("-pscreen", "-ps", "NAME", "their output: NAME.0, NAME.1 and so on"),
    Option("-reorder", "-ro", "STYLE TEXT", "order of processes: nth N, or custom FILE"),
    Option("-mpicolor", "-m", "COLOR", "for an mpirun of several programs"),
    Option("-restart2data", "-r2data", "FILE DATA", "converts a restart file, without an input", more=True),
    Option("-restart2dump", "-r2dump", "FILE GROUP STYLE DUMP", "the same, to a dump", more=True),
    Option("-restart2info", "-r2info", "FILE", "prints what a restart file holds, without an input"),
)
NAMES = {name: option for option in OPTIONS for name in (option.long, option.short)}
# Spellings of `torchmdx` in addition to those of LAMMPS.
NAMES |= {"--input": NAMES["-in"], "--var": NAMES["-var"], "--log": NAMES["-log"], "--screen": NAMES["-screen"]}
WITHOUT_INPUT = {"-restart2data", "-restart2dump", "-restart2info"}
REFUSED = {
    "-mdi": "only LAMMPS's own program can start the MolSSI Driver Interface, before it starts MPI",
    "-r": "LAMMPS does not accept this abbreviation, although its help lists it; use -ro, -r2data, -r2dump or -r2info",
}


@dataclass
class GivenOptions:
    """input: the file of -in, None without. arguments: all options, spelt as LAMMPS reads them, in their order."""

    input: str | None = None
    arguments: list[str] = field(default_factory=list)
    needs_input: bool = True


def split(arguments: Sequence[str]) -> tuple[list[str], GivenOptions]:
    """Takes LAMMPS's options out of a command line; returns the rest, and them.

    Raises:
        ValueError: For options that cannot work, and for missing values.
    """
    rest, given, color = [], GivenOptions(), list[str]()
    words = list(arguments)
    while words:
        name, *inline = words[0].split("=", 1) if words[0].startswith("--") else [words[0]]
        if name in REFUSED:
            raise ValueError(f"{name} is not available: {REFUSED[name]}")
        option = NAMES.get(name)
        if option is None:
            rest.append(words.pop(0))
            continue
        words[:1] = inline
        values = _values(option, name, words)
        del words[: len(values)]
        if option.long == "-in":
            given.input = values[0]
        if option.long == "-mpicolor":
            color = [option.long, *values]  # LAMMPS reads it in the first place only
        else:
            given.arguments += [option.long, *values]
        given.needs_input &= option.long not in WITHOUT_INPUT
    given.arguments[:0] = color
    return rest, given


def _values(option: Option, name: str, words: Sequence[str]) -> list[str]:
    """The values of an option at the start of words: as many as LAMMPS takes."""
    least = 3 if option.long == "-suffix" and words[:1] == ["hybrid"] else option.least
    found = list(words[:least])
    if len(found) < least or any(value in NAMES for value in found):
        _refuse(option, name, least, found)
    if not option.more or option.long == "-suffix":
        return found
    for word in words[least:]:
        number = option.long == "-package" and word[1:2].isdigit()
        if word.startswith("-") and not number:
            break
        found.append(word)
    return found


def _refuse(option: Option, name: str, least: int, found: list[str]) -> NoReturn:
    got = next((k for k, value in enumerate(found) if value in NAMES), len(found))
    needed = "hybrid STYLE STYLE" if least > option.least else option.values
    raise ValueError(f"{name} needs {needed}, got {' '.join(found[:got]) or 'nothing'}")
