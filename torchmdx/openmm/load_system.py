"""Reading Systems with potentials from XML: with the plugin if it is needed, and without running code from the file."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import openmm

from torchmdx.openmm.find import find, names_restore, pickled_reference
from torchmdx.openmm.native.saved_force import END
from torchmdx.openmm.references import settings_of
from torchmdx.openmm.transport_native import load_plugin

# The steps of a pickle of `restore(text, selects)`, without those that only frame and remember values.
_STEPS = ("str", "str", "STACK_GLOBAL", "str", "bool", "TUPLE2", "REDUCE", "STOP")
_BOOKKEEPING = ("PROTO", "FRAME", "MEMOIZE")


def load_system(source: str | Path, *, trusted: bool = False, download: bool = False) -> openmm.System:
    """A System that was saved with XmlSerializer, from a file or from its text, with all its potentials restored.

    As `XmlSerializer.deserialize`, but it loads the plugin of the native transport where the System needs it, compiling
    it if necessary, and restores all potentials at once. OpenMM saves the functions of PythonForces as pickles, which
    may run any code: those of torchmdx are checked, others are refused unless the file is `trusted`. A potential that
    the file names on the Hugging Face hub is taken from the cache on this machine, or with `download` from the hub; its
    hash must be the one in the file.

    Raises:
        ImportError: If the plugin is needed and cannot be used.
        FileNotFoundError: For a checkpoint that is missing or has changed.
        ValueError: For a checkpoint that is missing or has changed.
        ValueError: For XML that is no System.
    """
    text = source if isinstance(source, str) and source.lstrip().startswith("<") else Path(source).read_text()
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"a System must be XML of OpenMM's XmlSerializer, got invalid XML: {error}") from None
    if root.tag != "System":
        raise ValueError(f"a System must be XML of OpenMM's XmlSerializer, got a {root.tag}")
    kinds = {element.get("type", "") for element in _forces(root)}
    if not trusted:
        for element in _forces(root):
            if element.get("type") == "PythonForce":
                _require_own(element)
    if download:
        for reference in _references(root):
            settings_of(reference).download()
    if "TorchmdxForce" in kinds:
        _load_plugin()
    system = openmm.XmlSerializer.deserialize(text)
    find(system)  # raises what a PythonForce would raise only when it is evaluated
    return system


def _forces(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """All elements with a type: forces, also those inside others, such as the variables of a CustomCVForce."""
    return (element for element in root.iter() if element.get("type"))


def _references(root: ElementTree.Element) -> Iterator[str]:
    for element in _forces(root):
        if element.get("type") == "TorchmdxForce":
            yield element.attrib["reference"].removesuffix(END)
        elif element.get("type") == "PythonForce" and (found := pickled_reference(element.attrib["function"])):
            yield found


def _load_plugin() -> None:
    names = {openmm.Platform.getPlatform(index).getName() for index in range(openmm.Platform.getNumPlatforms())}
    try:
        load_plugin(cuda="CUDA" in names)
    except ImportError as error:
        raise ImportError(
            f"this System has a potential of the transport 'native', which needs the plugin of torchmdx. {error}. On "
            "the machine that made it, transport='python' gives a System that can be read everywhere"
        ) from None


def _require_own(element: ElementTree.Element) -> None:
    """Raises ValueError for a PythonForce whose pickle does more than to restore a potential of torchmdx."""
    name = element.get("name")
    try:
        code = list(pickletools.genops(bytes.fromhex(element.get("function", ""))))
    except ValueError as error:
        raise ValueError(f"the function of PythonForce {name!r} cannot be read: {error}") from None
    steps = [(_kind(step.name), value) for step, value, _ in code if step.name not in _BOOKKEEPING]
    if tuple(kind for kind, _ in steps) != _STEPS or not names_restore([str(value) for _, value in steps[:2]]):
        raise ValueError(
            f"PythonForce {name!r} contains a function that is not one of torchmdx, and reading it may run any code: "
            "pass trusted=True to read the file anyway"
        )


def _kind(step: str) -> str:
    return "str" if "UNICODE" in step else "bool" if step in ("NEWTRUE", "NEWFALSE") else step
