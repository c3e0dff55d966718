"""The reference models in plain torch, to be read in this order::

    cutoff -> tensors -> radial -> embedding -> interaction -> tensornet -> potential

tensornet2 and charge_equilibration extend TensorNet by partial charges; priors/ are energy terms without weights.
"""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.models.ensemble import Ensemble as Ensemble
    from torchmdx.models.potential import Potential as Potential
    from torchmdx.models.priors.base import Geometry as Geometry
    from torchmdx.models.priors.base import Prior as Prior
    from torchmdx.models.priors.base import PriorConfig as PriorConfig
    from torchmdx.models.priors.coulomb import CoulombConfig as CoulombConfig
    from torchmdx.models.priors.d2 import D2Config as D2Config
    from torchmdx.models.priors.d3 import D3Config as D3Config
    from torchmdx.models.priors.zbl import ZBLConfig as ZBLConfig
    from torchmdx.models.registry import ModelConfig as ModelConfig
    from torchmdx.models.registry import register_model as register_model
    from torchmdx.models.registry import register_prior as register_prior
    from torchmdx.models.tensornet import TensorNetConfig as TensorNetConfig
    from torchmdx.models.tensornet2 import TensorNet2Config as TensorNet2Config
    from torchmdx.models.uncertainty import Uncertainty as Uncertainty
    from torchmdx.models.wrapping import wrap as wrap
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
