"""Reads the TensorNet and QET potentials of matgl: a folder with model.json and state.pt."""

from __future__ import annotations

import hashlib

from torchmdx.checkpoints.formats.matgl.equilibration import qet_config, rename_equilibration
from torchmdx.checkpoints.formats.matgl.network_settings import atomic_numbers_of, config_of, is_qet, network_of
from torchmdx.checkpoints.formats.matgl.renamed_tensors import StateDict, rename
from torchmdx.checkpoints.formats.reading import Reading, Report
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.formats.torchmdnet import archive
from torchmdx.models.model_card import Card
from torchmdx.models.potential import Potential
from torchmdx.models.qet import QETConfig
from torchmdx.models.skeleton import require_sizes
from torchmdx.runtime.damaged_file import WRONG_VALUES, naming, parse_json

ENDINGS = ()  # a folder
# The files of a folder that are read. matgl also writes model.pt, a pickle of Python objects, which is never opened.
FILES = ("model.json", "state.pt")
WEIGHTS = FILES[1]
LARGEST_JSON = 1 << 24


def recognizes(source: Source) -> bool:
    """Whether it is a folder in which matgl saved a model."""
    return source.has_part(FILES[0])


def read(source: Source) -> Reading:
    """The potential in a folder of matgl, in the dtype it was saved in, and a report on what was read.

    Raises:
        ValueError: For a folder that is damaged or holds no potential.
        UnsupportedCheckpoint: Naming model or setting, for one that torchmdx does not have.
    """
    folder = source.path
    description, state = (folder / name for name in FILES)
    if not state.is_file():
        raise ValueError(f"{str(folder)!r} has a model.json of matgl but no state.pt, which holds the weights")
    with naming(description):
        if description.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it must have at most {LARGEST_JSON} bytes, got {description.stat().st_size}")
        told = parse_json(source.part(FILES[0]))
        settings, form = network_of(told, str(description))
        numbers = atomic_numbers_of(settings, str(description))
    data = source.part(FILES[1])
    report = Report(str(folder), hashlib.sha256(data).hexdigest())
    with naming(description):
        config = config_of(settings, form, numbers, report)
        if is_qet(told["kwargs"]["model"]):
            config = qet_config(config, settings, report)
    with naming(state):
        tensors = StateDict(_load(data, str(state)), str(state), report)
        found = rename(tensors, config, settings, form.target_first, numbers)
        if isinstance(config, QETConfig):
            found = rename_equilibration(tensors, config, found, numbers)
        tensors.require_nothing_left()
        require_sizes(config, (), found, repr(str(state)))
        potential = Potential(config)
        potential.fill(found, repr(str(state)))
    potential.card = Card(name=folder.resolve().name, elements=tuple(numbers), charges=(0.0,))
    if not isinstance(config, QETConfig):
        report.ignored.append("the total charge of structures: the network has no input for it")
    return Reading(potential, report)


def _load(data: bytes, origin: str) -> object:
    try:
        return archive.load(data)
    except archive.Forbidden as error:
        raise ValueError(
            f"{origin!r} holds more than tensors, numbers and text ({error}), and was not loaded: torchmdx never runs "
            "code from a checkpoint"
        ) from error
    except (ValueError, OSError, *WRONG_VALUES) as error:
        raise ValueError(f"{origin!r} is not a readable checkpoint ({error})") from error
