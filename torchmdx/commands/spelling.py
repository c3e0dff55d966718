"""A parser of command lines that suggests the nearest command or option for a misspelt one."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pydantic import BaseModel

NEAR = 0.6  # similarity of two words, from 0 to 1


class Parser(argparse.ArgumentParser):
    """As argparse's; parsers of its subcommands have this class too.

    Raises ValueError.

    Attributes:
        take_out: Takes options of another program out of the arguments, and returns the others and what it took, which
            becomes `taken_out` of the namespace.
        late: Name of the list of positional arguments that may also stand behind options, which argparse refuses.
        rest: Name of a list of all arguments that belong to no option, in their order, instead of an error.
    """

    take_out: Callable[[list[str]], tuple[list[str], Any]] | None = None
    late: str | None = None
    rest: str | None = None
    _given: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but a subcommand refuses unknown arguments itself, so that the usage shown is its own."""
        self._given = () if args is None else tuple(args)
        if self.take_out is not None:
            namespace = argparse.Namespace() if namespace is None else namespace
            try:
                args, namespace.taken_out = self.take_out(list(self._given))
            except ValueError as error:
                self.error(str(error))
        found, unknown = super().parse_known_args(args, namespace)
        if self.rest is not None:
            setattr(found, self.rest, unknown)
            unknown = []
        if self.late is not None and not any(word.startswith("-") for word in unknown):
            getattr(found, self.late).extend(unknown)
            unknown = []
        if unknown and not any(isinstance(action, argparse._SubParsersAction) for action in self._actions):
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def flags(self) -> list[str]:
        """Every option, such as --resume."""
        return list(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        """Prints the usage and the message with suggestions, and exits with status 2."""
        super().error(message + self._suggestions(message))

    def _suggestions(self, message: str) -> str:
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is not None:
            return nearest([choice.group(1)], re.findall(r"[\w.-]+", choice.group(2)))
        if "unrecognized arguments" in message or "are required" in message:
            known = self.flags()
            words = [word.split("=")[0] for word in self._given if word.startswith("--") and len(word) > 2]
            return nearest([word for word in words if not any(name.startswith(word) for name in known)], known)
        return ""


def nearest(words: Iterable[str], known: Iterable[str]) -> str:
    """Such as "; did you mean --temperature?"; empty if nothing is similar."""
    names = {name.lstrip("-"): name for name in known}
    found = [names[near] for word in words for near in difflib.get_close_matches(word.lstrip("-"), names, 1, NEAR)]
    return f"; did you mean {', '.join(dict.fromkeys(found))}?" if found else ""


def take_file(words: list[str], kind: type[BaseModel], flags: Sequence[str], usage: str, optional: bool) -> str | None:
    """Takes the configuration file out of `rest`, where it is first; overrides --section.key value follow it.

    Args:
        kind: Of the configuration.
        flags: Options of the command.
        usage: Such as "torchmdx train CONFIG.yaml".
        optional: Whether there may be overrides without a file.

    Returns:
        None without a file.

    Raises:
        ValueError: For words that are neither options nor overrides, and for overrides before the file.
    """
    from torchmdx.training.config_file import nearest_key

    names = [word.partition("=")[0] for k, word in enumerate(words) if word.startswith("--" if k else "-")]
    wrong = [name for name in names if "." not in name]
    if wrong:
        name = wrong[0].lstrip("-")
        key = nearest_key(kind, name)
        hint = nearest(wrong[:1], flags) or ("" if key in (None, name) else f"; did you mean --{key}?")
        raise ValueError(f"unrecognized arguments: {' '.join(wrong)}{hint}")
    if words and not words[0].startswith("-"):
        return words.pop(0)
    if words and not optional:
        raise ValueError(
            f"the configuration must come before overrides: {usage} --section.key value, got {words[0]!r} first"
        )
    return None
