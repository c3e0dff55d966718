"""Potentials that come with the package: each is a file NAME.safetensors of this folder."""

from pathlib import Path

# What everything uses that is not told which potential to use.
DEFAULT_POTENTIAL = "organic-1"
FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """Their files, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.safetensors"))}
