"""Base class and types of the sections of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

try:
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as error:
    raise ImportError("training needs pydantic, which is not installed: pip install 'torchmdx[train]'") from error

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Below1 = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Part = Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)]
Files = str | list[str]
Function = Literal["mse", "mae", "huber"]


class Section(BaseModel):
    """Rejects unknown keys and values of the wrong type."""

    model_config = ConfigDict(extra="forbid", strict=True, validate_default=True)
