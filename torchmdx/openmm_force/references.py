"""References to potentials in saved Systems: checkpoint file and hash, without weights or code.

A potential that was given in memory has no file and can be restored only in the same process, which is enough for
copies of a System.
"""

from __future__ import annotations

import json
import uuid
import weakref

from torchmdx.openmm_force.evaluator import ForceEvaluator
from torchmdx.openmm_force.settings import ForceSettings

# By names that are unique across processes.
_in_memory: weakref.WeakValueDictionary[str, ForceEvaluator] = weakref.WeakValueDictionary()


def reference_to(evaluator: ForceEvaluator) -> str:
    """Text from which `evaluator_of` restores the evaluator."""
    name = ""
    if evaluator.settings.checkpoint is None:
        name = next((n for n, other in _in_memory.items() if other is evaluator), "") or uuid.uuid4().hex
        _in_memory[name] = evaluator
    return json.dumps({"settings": evaluator.settings.to_text(), "in_memory": name})


def evaluator_of(reference: str) -> ForceEvaluator:
    """The evaluator of a reference. Raises FileNotFoundError for a missing checkpoint, and ValueError.

    ValueError: the checkpoint has changed, or the potential was given in memory in another process.
    """
    values = json.loads(reference)
    settings = ForceSettings.from_text(values["settings"])
    if settings.checkpoint is not None:
        return ForceEvaluator(settings, settings.load_potential())
    evaluator = _in_memory.get(values["in_memory"])
    if evaluator is None or evaluator.settings != settings:
        raise ValueError(
            "the potential of this force was given in memory, not as a checkpoint file: it can be restored only in the "
            "process that made it"
        )
    return evaluator
