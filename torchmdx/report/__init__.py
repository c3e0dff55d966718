"""Reports on how well a potential predicts: errors, pictures, one page."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.report.predictor import Predictions as Predictions
    from torchmdx.report.predictor import Predictor as Predictor
    from torchmdx.report.predictor import predict as predict
    from torchmdx.report.write import write_report as write_report
else:
    __all__, __getattr__, __dir__ = public_names(
        __name__,
        {
            "Predictions": "predictor",
            "Predictor": "predictor",
            "predict": "predictor",
            "write_report": "write",
        },
    )
