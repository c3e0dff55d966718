"""How a saved System refers to a potential: by checkpoint file and hash, never by weights or code.

A potential that was given in memory has no file: it is found again only in the process that holds it, which is enough
for copies of a System.
"""

from __future__ import annotations

import json
import uuid
import weakref

from torchmdx.openmm_force.evaluator import Evaluator
from torchmdx.openmm_force.settings import ForceSettings

# By names that no other process has given, whatever it has in memory.
_in_memory: weakref.WeakValueDictionary[str, Evaluator] = weakref.WeakValueDictionary()


def reference_to(evaluator: Evaluator) -> str:
    """Text from which `evaluator_of` makes the same evaluator."""
    name = ""
    if evaluator.settings.checkpoint is None:
        name = next((n for n, other in _in_memory.items() if other is evaluator), "") or uuid.uuid4().hex
        _in_memory[name] = evaluator
    return json.dumps({"settings": evaluator.settings.to_text(), "in_memory": name})


def evaluator_of(reference: str) -> Evaluator:
    """The evaluator. Raises ValueError or FileNotFoundError for a checkpoint, or a process, that is another."""
    values = json.loads(reference)
    settings = ForceSettings.from_text(values["settings"])
    if settings.checkpoint is not None:
        return Evaluator(settings, settings.load_potential())
    evaluator = _in_memory.get(values["in_memory"])
    if evaluator is None or evaluator.settings != settings:
        raise ValueError(
            "the potential of this force was given in memory, not as a checkpoint file: it can be restored only in the "
            "process that made it"
        )
    return evaluator
