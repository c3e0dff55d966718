"""Configurations as text: YAML files, command-line overrides, a complete commented file, readable errors."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from torchmdx.training.config import Config

MOST_VALUES = 100_000  # of a configuration; atomic numbers and names of files may be many


def read_config(path: str | Path, changes: Sequence[str] = ()) -> Config:
    """The configuration in a YAML file, with overrides such as ["--loss.energy.weight", "5"].

    Raises:
        FileNotFoundError: With the key, the value and the closest valid key.
        ValueError: With the key, the value and the closest valid key.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no configuration at {str(path)!r}")
    return make_config(_yaml(path.read_text(), str(path)), changes)


def make_config(values: dict[str, Any], changes: Sequence[str] = ()) -> Config:
    """The configuration from values by section and overrides from the command line."""
    for key, text in _pairs(changes):
        _require_known(key)
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
        return Config.model_validate(values)
    except ValidationError as error:
        raise ValueError("; ".join(_problems(error))) from None


def write_text(config: Config) -> str:
    """YAML of every value, with comments; `read_config` restores the same configuration."""
    return "\n".join(_lines(config, "")).rstrip("\n") + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON schema of configurations, by which editors complete and check YAML files."""
    schema = Config.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "torchmdx train"}


def _yaml_module() -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ImportError("training needs PyYAML, which is not installed: pip install 'torchmdx[train]'") from error
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


def known_keys() -> list[str]:
    """Every dotted key."""
    return list(_keys(Config, ""))


def _keys(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def _require_known(key: str) -> None:
    if key not in known_keys():
        raise ValueError(_unknown(key))


def _unknown(key: str) -> str:
    keys = known_keys()
    sections = sorted({word.rsplit(".", 1)[0] for word in keys})
    last = {word.rsplit(".", 1)[1]: word for word in reversed(keys)}
    near = difflib.get_close_matches(key, [*keys, *sections], 1, 0.6)
    tail = difflib.get_close_matches(key.rsplit(".", 1)[-1], list(last), 1, 0.6)
    nearest = near[0] if near else last[tail[0]] if tail else None
    return f"unknown key {key!r}" + (f"; did you mean {nearest!r}?" if nearest else "")


def _problems(error: ValidationError) -> list[str]:
    """One sentence per invalid key."""
    found: dict[str, list[str]] = {}
    unknown: list[str] = []
    for problem in error.errors():
        path = _dotted(problem["loc"])
        if problem["type"] == "extra_forbidden":
            unknown.append(f"{_unknown(path)} (got {problem['input']!r})")
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


def _dotted(location: tuple[int | str, ...]) -> str:
    """The dotted key, without the union branches that pydantic adds to a location."""
    kept: list[str] = []
    kind: Any = Config
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


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            if not indent:
                about = (type(value).__doc__ or "").strip()
                yield from (["# " + about] if about else [])
            yield f"{indent}{name}:" + (f"  # {field.description}" if field.description else "")
            yield from _lines(value, indent + "  ")
            if not indent:
                yield ""
            continue
        text = _scalar(value)
        yield f"{indent}{name}: {text}" + (f"  # {field.description}" if field.description else "")


def _scalar(value: Any) -> str:
    yaml = _yaml_module()
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False).strip()
    return text.removesuffix("...").strip()
