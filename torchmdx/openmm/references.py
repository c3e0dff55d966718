"""References to potentials in saved Systems: checkpoint file and hash, without weights or code.

Copies of a System in one process share their evaluators, and OpenMM itself copies what is inside a CustomCVForce. A
potential that was given in memory has no file and can be restored only in the same process.
"""

from __future__ import annotations

import json
import weakref

from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.settings import ForceSettings

# By names that are unique across processes.
_alive: weakref.WeakValueDictionary[str, ForceEvaluator] = weakref.WeakValueDictionary()


def reference_to(evaluator: ForceEvaluator) -> str:
    """Text from which `evaluator_of` restores the evaluator."""
    _alive[evaluator.name] = evaluator
    return json.dumps({"settings": evaluator.settings.to_text(), "name": evaluator.name})


def living_evaluator(reference: str) -> ForceEvaluator | None:
    """The evaluator of a reference if it is in use in this process."""
    values = json.loads(reference)
    evaluator = _alive.get(values.get("name", ""))
    return evaluator if evaluator is not None and evaluator.settings.to_text() == values["settings"] else None


def settings_of(reference: str) -> ForceSettings:
    """The settings in a reference."""
    return ForceSettings.from_text(json.loads(reference)["settings"])


def evaluator_of(reference: str) -> ForceEvaluator:
    """The evaluator of a reference. Raises FileNotFoundError for a missing checkpoint, and ValueError.

    ValueError: the checkpoint has changed, or the potential was given in memory in another process. Files are those on
    this machine: nothing is downloaded.
    """
    settings = settings_of(reference)
    evaluator = living_evaluator(reference)
    if settings.checkpoint is None and evaluator is None:
        raise ValueError(
            "the potential of this force was given in memory, not as a checkpoint file: it can be restored only in the "
            "process that created it"
        )
    if evaluator is not None:
        if settings.checkpoint is not None:
            settings.require_unchanged()
        return evaluator
    evaluator = ForceEvaluator(settings, settings.load_potential())
    evaluator.name = json.loads(reference).get("name") or evaluator.name
    _alive[evaluator.name] = evaluator
    return evaluator
