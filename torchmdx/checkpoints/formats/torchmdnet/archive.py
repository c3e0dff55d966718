"""A reader of torch.save's format, a zip of one pickle and raw numbers, that checks every size.

torch.load(weights_only=True) runs no code either. But it takes the sizes of storages from the pickle without comparing
them with the data, so that a malicious file can read out of bounds or allocate any amount of memory.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

# Dtypes of torch's storage classes.
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in STORAGES.values()}
# Opcodes that create objects, sets and buffers.
REFUSED = (
    *(pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.INST, pickle.OBJ, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)
# Largest ratio of unpacked to packed size: weights are not compressed, text a few times at most.
LARGEST_RATIO, SMALL = 20, 1 << 20
# Tensors may share storage, as tied weights do: the sum of their sizes may be this many times the file's size.
SHARED = 4


class Forbidden(ValueError):
    """A pickle contains more than tensors, numbers and text."""


def require_unpacked_size(archive: zipfile.ZipFile, num_bytes: int) -> None:
    """Raises ValueError for a zip whose files are far larger than `num_bytes`, its own size."""
    total = sum(info.file_size for info in archive.infolist())
    if total > LARGEST_RATIO * num_bytes + SMALL:
        raise ValueError(f"a zip of {num_bytes} bytes must not unpack to {total}")


def load(data: bytes) -> Any:
    """The object in a file of torch.save. Raises Forbidden, ValueError, and errors of damaged zips and pickles."""
    if not data.startswith(b"PK\x03\x04"):
        raise ValueError("it must be a zip archive, as torch.save writes since torch 1.6")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        require_unpacked_size(archive, len(data))
        names = archive.namelist()
        pickles = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError(f"it must hold one data.pkl, got {len(pickles)}")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("its numbers must be little-endian")
        content = io.BytesIO(archive.read(pickles[0]))
        return _TensorUnpickler(content, lambda key: archive.read(f"{root}data/{key}"), SHARED * len(data)).load()


# pickle's Python implementation: the one in C allocates memory by the memo indices in the file.
class _TensorUnpickler(pickle._Unpickler):
    """Creates only plain values, ordered dictionaries, dtypes and tensors."""

    # Attributes of the base class: its stack, and functions by opcode.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: io.BytesIO, numbers: Callable[[str], bytes], most_bytes: int) -> None:
        """numbers: returns the raw bytes of a storage. most_bytes: limit for all tensors together."""
        super().__init__(file, encoding="utf-8")
        self._numbers, self._left = numbers, most_bytes
        self._storages: dict[tuple[str, torch.dtype], Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        calls: dict[str, Callable[..., Any]] = {
            "collections.OrderedDict": _ordered,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": _parameter,
            "torch.Size": _whole,
        }
        path = f"{module}.{name}"
        if path in calls:
            return _Call(calls[path])
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if module == "torch" and name in STORAGES:
            return _Storage(STORAGES[name])
        raise Forbidden(path)

    def persistent_load(self, pid: Any) -> Tensor:
        """A storage, as a flat tensor of all its numbers in the file."""
        match pid:
            case ("storage", _Storage(dtype=dtype), str(key), str(), int(count)):
                pass
            case _:
                raise ValueError(
                    f"a storage must be described by type, name, device and size, got a {type(pid).__name__}"
                )
        if (key, dtype) not in self._storages:
            raw = self._numbers(key)
            size = dtype.itemsize
            if len(raw) != count * size:
                raise ValueError(
                    f"storage {key[:20]!r} must have {count} numbers of {size} bytes, got {len(raw)} bytes"
                )
            self._storages[key, dtype] = (
                torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype, device="cpu")
            )
        held = self._storages[key, dtype]
        if len(held) != count:
            raise ValueError(f"storage {key[:20]!r} must have one size, got {len(held)} and {count}")
        return held

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        if not isinstance(function, _Call) or type(arguments) is not tuple:
            raise ValueError(f"it must call a known function, got a {type(function).__name__}")
        self.stack[-1] = function.make(*arguments)

    def load_build(self) -> None:
        # Attributes of an ordered dictionary, in which torch stores versions of modules.
        self.stack.pop()

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise ValueError(f"entries must be those of a dictionary, got a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int)):  # hashing a deeply nested tuple would overflow the stack
                raise ValueError(f"keys must be text or whole numbers, got a {type(key).__name__}")
            target[key] = value

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set(items)

    def _tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        """A view of a storage; refuses large shapes that repeat few numbers."""
        shape, strides = _whole(size), _whole(stride)
        (first,) = _whole((offset,))
        if not isinstance(storage, Tensor) or len(shape) != len(strides):
            raise ValueError("a tensor must have a storage, and as many strides as sizes")
        count = math.prod(shape)
        last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if count else -1
        self._left -= count * storage.dtype.itemsize
        if count > len(storage) or last >= len(storage) or self._left < 0:
            raise ValueError(f"a tensor of shape {list(shape)} must lie in its storage of {len(storage)} numbers")
        return torch.as_strided(storage, shape, strides, first)

    def load_refused(self) -> None:
        raise Forbidden("an object")

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    for _code in REFUSED:
        dispatch[_code[0]] = load_refused


@dataclass(frozen=True, eq=False)
class _Storage:
    """The dtype of a storage."""

    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class _Call:
    """A function that a pickle may call."""

    make: Callable[..., Any]


def _ordered() -> dict[Any, Any]:
    return {}


def _parameter(value: Any, *_: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise ValueError(f"a parameter must be a tensor, got a {type(value).__name__}")
    return value


def _whole(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple) or len(values) > 64 or not all(type(n) is int and 0 <= n < 2**62 for n in values):
        raise ValueError("sizes, strides and offsets must be whole numbers >= 0")
    return values
