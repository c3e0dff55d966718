"""Activations and their slopes inside kernels, by the names of ACTIVATIONS in engines/plan/settings.py."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(z):
    """1 / (1 + exp(-z)); where the exponential overflows, 0 is the right answer."""
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def _tanh(z):
    e = tl.exp(-2.0 * tl.abs(z))
    value = (1.0 - e) / (1.0 + e)
    return tl.where(z >= 0, value, -value)


@triton.jit
def _tanh_softplus(z):
    # t = tanh(log(1 + eᶻ)) as a ratio of polynomials of eᶻ, and 1 - t² without cancellation; beyond 20, t is 1.
    e = tl.exp(tl.minimum(z, 20.0))
    p = e * (e + 2.0)
    t = p / (p + 2.0)
    return t, 2.0 / (p + 2.0) * (1.0 + t)


@triton.jit
def activate(z, name: tl.constexpr):
    """act(z); z itself for "none"."""
    if name == "none":
        value = z
    elif name == "silu":
        value = z * sigmoid(z)
    elif name == "ssp":
        value = tl.maximum(z, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(z))) - 0.6931471805599453
    elif name == "tanh":
        value = _tanh(z)
    elif name == "sigmoid":
        value = sigmoid(z)
    else:
        tl.static_assert(name == "mish")
        t, _ = _tanh_softplus(z)
        value = z * t
    return value


@triton.jit
def slope(z, name: tl.constexpr):
    """act'(z); ones for "none"."""
    if name == "none":
        value = tl.full(z.shape, 1.0, tl.float32)
    elif name == "silu":
        s = sigmoid(z)
        value = s * (1.0 + z * (1.0 - s))
    elif name == "ssp":
        value = sigmoid(z)
    elif name == "tanh":
        t = _tanh(z)
        value = 1.0 - t * t
    elif name == "sigmoid":
        s = sigmoid(z)
        value = s * (1.0 - s)
    else:
        tl.static_assert(name == "mish")
        t, rest = _tanh_softplus(z)
        value = t + z * rest * sigmoid(z)
    return value
