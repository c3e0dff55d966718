"""Triton's interpreter, without what it works out again at every operation.

It spends most of its time on what does not change: it patches the language anew at every call of a function inside a
kernel, and makes the type and the shape of every value again. Here those are kept. What a kernel computes, and how,
stays the interpreter's own; of another version of Triton, whatever looks otherwise is left as it is.
"""

import functools
import inspect


def quicken() -> None:
    """Makes the interpreter of this process quicker. Once is enough."""
    from triton.language import core
    from triton.runtime import interpreter

    if not getattr(interpreter, "is_quick", False):
        patch_once(interpreter, core)
        keep_types(interpreter, core)
        keep_shapes(core)
        leave_equal_shapes(interpreter, core)
        leave_unread_checks(interpreter)
        see_the_same_type(core)
        interpreter.is_quick = True


def takes(function, *names) -> bool:
    """If there is such a function, and it has exactly these parameters."""
    return function is not None and list(inspect.signature(function).parameters) == list(names)


def patch_once(interpreter, core) -> None:
    """The language is patched where a kernel starts, and not again for every function that it calls."""
    patch = getattr(interpreter, "_patch_lang", None)
    if not takes(patch, "fn"):
        return

    @functools.cache
    def languages(fn):
        found = [value for value in fn.__globals__.values() if inspect.ismodule(value)]
        return [value for value in found if value in (interpreter.tl, core)]

    def patch_what_is_not(fn):
        # What is patched is no builtin of the compiler any longer.
        if languages(fn) and not any(core.is_builtin(language.load) for language in languages(fn)):
            return interpreter._LangPatchScope()
        return patch(fn)

    interpreter._patch_lang = patch_what_is_not


def keep_types(interpreter, core) -> None:
    """NumPy's type for a scalar of Triton, by its name."""
    make = getattr(interpreter, "_get_np_dtype", None)
    if not takes(make, "tt_dtype"):
        return
    kept = {}

    def np_dtype(tt_dtype):
        if type(tt_dtype) is not core.dtype:
            return make(tt_dtype)
        if tt_dtype.name not in kept:
            kept[tt_dtype.name] = make(tt_dtype)
        return kept[tt_dtype.name]

    interpreter._get_np_dtype = np_dtype


def keep_shapes(core) -> None:
    """Blocks of one shape share it, with its check and its name; nothing changes a shape."""
    make_block, make_tensor = core.block_type.__init__, core.tensor.__init__
    if not takes(make_block, "self", "element_ty", "shape") or not takes(make_tensor, "self", "handle", "type"):
        return
    # Shape, number of elements and name, by the sizes and by the shape itself, which lives as long as these do.
    by_sizes, by_shape = {}, {}
    tensors = {}

    def block(self, element_ty, shape):
        found = by_shape.get(id(shape))
        if found is None and all(type(size) is int for size in shape):
            found = by_sizes.get(tuple(shape))
        if found is None:
            make_block(self, element_ty, shape)
            found = by_sizes.setdefault(tuple(self.shape), (self.shape, self.numel, str(self.shape)))
            by_shape[id(found[0])] = found
        self.element_ty = element_ty
        self.shape, self.numel, name = found
        self.name = f"<{name}, {element_ty}>"

    def tensor(self, handle, type):
        key = tuple(type.shape) if type.is_block() else ()
        if key not in tensors:
            make_tensor(self, handle, type)
            tensors[key] = self.numel, self.shape
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = tensors[key]

    core.block_type.__init__, core.tensor.__init__ = block, tensor


def leave_equal_shapes(interpreter, core) -> None:
    """Two blocks that share their shape are broadcast already."""
    semantic = type(interpreter.interpreter_semantic)
    broadcast = getattr(semantic, "broadcast_impl_value", None)
    if not takes(broadcast, "self", "lhs", "rhs"):
        return

    def broadcast_others(self, lhs, rhs):
        one, other = lhs.type, rhs.type
        if type(one) is core.block_type and type(other) is core.block_type and one.shape is other.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    semantic.broadcast_impl_value = broadcast_others


def leave_unread_checks(interpreter) -> None:
    """Without `debug`, sums and products of integers are made in int64 to be looked at, and then nobody looks."""
    semantic = type(interpreter.interpreter_semantic)
    check = getattr(semantic, "binary_op_sanitize_overflow_impl", None)
    if not takes(check, "self", "lhs", "rhs", "binary_op"):
        return

    def check_where_it_is_read(self, lhs, rhs, binary_op):
        if self.builder.options.debug:
            check(self, lhs, rhs, binary_op)

    semantic.binary_op_sanitize_overflow_impl = check_where_it_is_read


def see_the_same_type(core) -> None:
    """One scalar type is equal to itself without a look at its name."""
    equal = core.dtype.__eq__
    if takes(equal, "self", "other"):
        core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
