"""The folder of a training: its best potential, or those of several seeds, which are an ensemble."""

from __future__ import annotations

from pathlib import Path

# Names that trainings give.
MEMBER, BEST = "member-", "best.safetensors"
TOGETHER = "ensemble.safetensors"  # all members in one file, with factors of their spreads


def best_in(folder: str | Path) -> Path | None:
    """The best potential of a training with one seed; None in another folder, and for a training without one yet."""
    best = Path(folder) / BEST
    return best if best.is_file() else None


def is_ensemble_folder(folder: Path) -> bool:
    """Whether a folder is that of a training with several seeds."""
    return any(place.name.removeprefix(MEMBER).isdecimal() for place in folder.glob(f"{MEMBER}*") if place.is_dir())


def whole_in(folder: Path) -> list[Path]:
    """The file of all members, which has the factors of their spreads; without one, and raises, as `files_in`."""
    together = folder / TOGETHER
    return [together] if together.is_file() else files_in(folder)


def files_in(folder: Path) -> list[Path]:
    """The files of the best potentials of a training with several seeds, in the order of seeds.

    Raises:
        FileNotFoundError: For a folder without members, and for members that have no best potential yet.
    """
    numbered = {place.name.removeprefix(MEMBER): place for place in folder.glob(f"{MEMBER}*") if place.is_dir()}
    places = [numbered[number] for number in sorted(filter(str.isdecimal, numbered), key=int)]
    if not places:
        raise FileNotFoundError(
            f"no checkpoint at {str(folder)!r}: a folder must hold {BEST}, or {MEMBER}0, {MEMBER}1, ... of several "
            "seeds, as a training writes them"
        )
    files = [place / BEST for place in places]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"every member of the ensemble in {str(folder)!r} must be trained: no {missing[0]}")
    return files
