"""pydantic models as parameters and results: the one file that knows pydantic, which is never imported before a user is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pydantic import BaseModel


def is_model(cls: object) -> bool:
    """Say whether this is a pydantic model class; without pydantic loaded, nothing is."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(cls, type) and issubclass(cls, base)


def schema(cls: type) -> dict[str, Any]:
    """Return the model's own JSON Schema."""
    return cast("type[BaseModel]", cls).model_json_schema()


def structure(data: object, cls: type) -> object:
    """Make a model of JSON data."""
    return cast("type[BaseModel]", cls).model_validate(data)


def unstructure(model: object) -> object:
    """Make JSON data of a model."""
    return cast("BaseModel", model).model_dump(mode="json")
