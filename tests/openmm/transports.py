"""How OpenMM and a potential exchange positions and forces in tests: the transports that there are, and options."""

import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from torchmdx.openmm.native import native  # noqa: E402

EXACT = dict(device="cpu", precision="float64")
REASON = native.unavailable(cuda=False)
# Those that run without a GPU: Python's, and the C++ plugin on the platforms of the CPU.
TRANSPORTS = [
    "python",
    pytest.param("native", marks=pytest.mark.skipif(REASON is not None, reason=f"no plugin: {REASON}")),
]


def require_on_gpu(request) -> None:
    """Skips a test without OpenMM's CUDA platform, or whose parameter `transport` cannot be used on a GPU."""
    from torchmdx.openmm.transport_torch import why_not_torch

    if "CUDA" not in [openmm.Platform.getPlatform(i).getName() for i in range(openmm.Platform.getNumPlatforms())]:
        pytest.skip("needs OpenMM's CUDA platform")
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("transport") == "torch":
        reason = why_not_torch(cuda=True)
        if reason is not None:
            pytest.skip(reason)
