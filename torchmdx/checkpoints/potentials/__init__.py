"""Potentials included in the package: a file NAME.safetensors in this directory for each."""

from pathlib import Path

# The potential used where none is given.
DEFAULT_POTENTIAL = "organic-1"
# Fast models for multiple time steps, by the potential that they were distilled from.
FAST_MODELS = {"organic-1": "organic-1-fast"}
FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """Files of the included potentials, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.safetensors"))}
