"""Reports on how well a potential predicts: errors, pictures, one page; pages of structures."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.report.predictions import Predictions as Predictions
    from torchmdx.report.predictor import Predictor as Predictor
    from torchmdx.report.predictor import predict as predict
    from torchmdx.report.rigidity import add_uncertainty as add_uncertainty
    from torchmdx.report.view.notebook import View as View
    from torchmdx.report.write import write_report as write_report
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
