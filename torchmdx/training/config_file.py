"""Configurations as text: YAML files, command-line overrides, a complete commented file, readable errors."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from torchmdx.runtime.optional_package import require_package
from torchmdx.training.config import Config

MOST_VALUES = 100_000  # of a configuration; atomic numbers and names of files may be many
Kind = TypeVar("Kind", bound=BaseModel)


def read_config(path: str | Path, changes: Sequence[str] = ()) -> Config:
    """The configuration of a training in a YAML file. Arguments and errors as of `read_as`."""
    return read_as(Config, path, changes)


def make_config(values: dict[str, Any], changes: Sequence[str] = ()) -> Config:
    """The configuration of a training from values by section and overrides from the command line."""
    return make_as(Config, values, changes)


def read_as(kind: type[Kind], path: str | Path, changes: Sequence[str] = ()) -> Kind:
    """The configuration of a kind in a YAML file, with overrides such as ["--loss.energy.weight", "5"].

    Raises:
        FileNotFoundError: With the key, the value and the closest valid key.
        ValueError: With the key, the value and the closest valid key.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {str(path)!r}")
    return make_as(kind, _yaml(path.read_text(), str(path)), changes)


def make_as(kind: type[Kind], values: dict[str, Any], changes: Sequence[str] = ()) -> Kind:
    """The configuration of a kind from values by section and overrides from the command line."""
    for key, text in _pairs(changes):
        if key not in known_keys(kind):
            raise ValueError(_unknown(kind, key))
        *sections, name = key.split(".")
        at = values
        for section in sections:
            if at.get(section) is None:
                at[section] = {}
            at = at[section]
            if not isinstance(at, dict):
                raise ValueError(f"{section} must be a section of the configuration, got {at!r}")
        at[name] = _yaml_value(text)
    values = {name: {} if section is None else section for name, section in values.items()}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ValueError("; ".join(_problems(kind, error))) from None


def write_text(config: BaseModel, *, defaults_as_comments: bool = False) -> str:
    """YAML of every value, with comments; reading it restores the same configuration.

    Args:
        defaults_as_comments: Whether values that were not given are comments too.
    """
    shown = (line if given or not defaults_as_comments else f"# {line}" for line, given in _lines(config, ""))
    return "\n".join(shown).rstrip("\n") + "\n"


def json_schema(kind: type[BaseModel] = Config, title: str = "torchmdx train") -> dict[str, Any]:
    """The JSON schema of configurations, by which editors complete and check YAML files."""
    schema = kind.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


def print_schema(kind: type[BaseModel], title: str) -> int:
    """Prints the JSON schema; returns the exit status of the command."""
    print(json.dumps(json_schema(kind, title), indent=1, ensure_ascii=False))
    return 0


def _yaml_module() -> Any:
    require_package("yaml", "training needs", "train", "PyYAML")
    import yaml

    return yaml


def _yaml(text: str, name: str) -> dict[str, Any]:
    yaml = _yaml_module()
    try:
        values = _loaded(yaml, text)
    except yaml.YAMLError as error:
        raise ValueError(f"{name!r} is not valid YAML: {error}") from None
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{name!r} must hold sections such as `data:`, got {values!r}")
    return _numbers(values)


def _yaml_value(text: str) -> Any:
    yaml = _yaml_module()
    try:
        return _numbers(_loaded(yaml, text))
    except yaml.YAMLError:
        return text


def _loaded(yaml: Any, text: str) -> Any:
    """The values of a YAML text. Raises ValueError for one that is nested too deeply or whose aliases are too many."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        size = _size(node, {})
        if size > MOST_VALUES:
            raise ValueError(f"a configuration must have at most {MOST_VALUES} values, got {size:.3g} with its aliases")
        _require_once(node, set())
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("a configuration is nested too deeply") from None
    finally:
        loader.dispose()


def _size(node: Any, known: dict[int, int | None]) -> int:
    """The number of values of a YAML node, those of aliases counted each time. Raises ValueError for one in itself."""
    if id(node) not in known:
        known[id(node)] = None
        parts = node.value if isinstance(node.value, list) else []
        inner = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_size(one, known) for one in inner)
    size = known[id(node)]
    if size is None:
        raise ValueError("an alias of a configuration must not be inside what it refers to")
    return size


def _require_once(node: Any, seen: set[int]) -> None:
    """Raises ValueError for a key that a mapping has twice; YAML would silently take the last one."""
    if id(node) in seen or not isinstance(node.value, list):
        return
    seen.add(id(node))
    lines: dict[str, int] = {}
    for part in node.value:
        if isinstance(part, tuple) and isinstance(part[0].value, str):
            name, line = part[0].value, part[0].start_mark.line + 1
            if name in lines:
                raise ValueError(f"a key must be given once, got {name!r} in lines {lines[name]} and {line}")
            lines[name] = line
        for one in part if isinstance(part, tuple) else (part,):
            _require_once(one, seen)


def _numbers(value: Any) -> Any:
    """Converts numbers such as 1e-3, which YAML 1.1 reads as text."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and value[:1] in "+-.0123456789" and "e" in value.lower():
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _pairs(changes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(key, text) of `--key text` and `--key=text`."""
    waiting = list(changes)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"settings must be given as --section.key value, got {word!r}")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not waiting:
                raise ValueError(f"--{key} needs a value, got none")
            text = waiting.pop(0)
        yield key, text


def known_keys(kind: type[BaseModel] = Config) -> list[str]:
    """Every dotted key."""
    return list(_keys(kind, ""))


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def nearest_key(kind: type[BaseModel], key: str) -> str | None:
    """The most similar key or section, or else a key with a similar end."""
    keys = known_keys(kind)
    sections = sorted({word.rsplit(".", 1)[0] for word in keys})
    last = {word.rsplit(".", 1)[1]: word for word in reversed(keys)}
    near = difflib.get_close_matches(key, [*keys, *sections], 1, 0.6)
    tail = difflib.get_close_matches(key.rsplit(".", 1)[-1], list(last), 1, 0.6)
    return near[0] if near else last[tail[0]] if tail else None


def _unknown(kind: type[BaseModel], key: str) -> str:
    nearest = nearest_key(kind, key)
    return f"unknown key {key!r}" + (f"; did you mean {nearest!r}?" if nearest else "")


def _problems(kind: type[BaseModel], error: ValidationError) -> list[str]:
    """One sentence per invalid key."""
    found: dict[str, list[str]] = {}
    unknown: list[str] = []
    for problem in error.errors():
        path = _dotted(kind, problem["loc"])
        if problem["type"] == "extra_forbidden":
            unknown.append(f"{_unknown(kind, path)} (got {problem['input']!r})")
            continue
        if problem["type"] == "value_error":
            found.setdefault(f"{path}: " if path else "", []).append(str(problem["ctx"]["error"]))
            continue
        message = (
            problem["msg"]
            .replace("Input should be", "must be")
            .replace("a valid integer", "a whole number")
            .replace("a valid ", "a ")
        )
        got = f", got {problem['input']!r}"
        if problem["type"] == "literal_error":
            near = difflib.get_close_matches(str(problem["input"]), _options(problem["ctx"]["expected"]), 1, 0.5)
            got += f"; did you mean {near[0]!r}?" if near else ""
        found.setdefault(f"{path} ", []).append(f"{message}{got}")
    said = [start + " or ".join(_once(messages)) for start, messages in found.items()]
    return unknown + said


def _once(messages: list[str]) -> list[str]:
    """Messages of the branches of a union, with the value once, at the end."""
    tail = {message.rpartition(", got ")[2] for message in messages}
    if len(messages) > 1 and len(tail) == 1:
        heads = [message.rpartition(", got ")[0] for message in messages]
        return [*heads[:-1], f"{heads[-1]}, got {tail.pop()}"]
    return messages


def _options(expected: str) -> list[str]:
    return [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]


def _dotted(root: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """The dotted key, without the union branches that pydantic adds to a location."""
    kept: list[str] = []
    kind: Any = root
    for part in location:
        fields = getattr(kind, "model_fields", None)
        if fields is None:
            if isinstance(part, int):
                kept.append(str(part))
            continue
        kept.append(str(part))
        kind = fields[part].annotation if part in fields else None
        if get_origin(kind) in (types.UnionType, Union):
            kind = next((k for k in get_args(kind) if hasattr(k, "model_fields")), None)
    return ".".join(kept)


def _lines(section: BaseModel, indent: str, given: bool = True) -> Iterator[tuple[str, bool]]:
    """Lines of a section, and whether their values, or some within them, were given."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        mine = given and name in section.model_fields_set
        about = f"  # {field.description}" if field.description else ""
        if isinstance(value, BaseModel):
            if not indent and (said := (type(value).__doc__ or "").strip()):
                yield f"# {said}", True
            yield f"{indent}{name}:{about}", mine
            yield from _lines(value, indent + "  ", mine)
            if not indent:
                yield "", True
            continue
        yield f"{indent}{name}: {_scalar(value)}{about}", mine


def _scalar(value: Any) -> str:
    yaml = _yaml_module()
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip()
    return text.removesuffix("...").strip()
