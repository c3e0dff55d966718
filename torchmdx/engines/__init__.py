"""Ways to evaluate a potential with fixed shapes, and how an engine from outside the package joins."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.engines.engine import Engine as Engine
    from torchmdx.engines.engine import Outputs as Outputs
    from torchmdx.engines.engine import marked as marked
    from torchmdx.engines.plan.request import Request as Request
    from torchmdx.engines.registry import register_engine as register_engine
    from torchmdx.engines.registry import unregister_engine as unregister_engine
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
