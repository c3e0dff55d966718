"""Potentials included in the package: a file NAME.safetensors in this directory for each."""

from pathlib import Path

# The potential used where none is given.
DEFAULT_POTENTIAL = "organic-1"
FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """Files of the included potentials, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.safetensors"))}
