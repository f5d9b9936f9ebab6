"""pydantic models as parameters and results: the one file that knows pydantic, which is never imported before a user is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from agentloop.errors import ToolDefinitionError
from agentloop.values.json import format_json

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


def is_model(cls: object) -> bool:
    """Say whether this is a pydantic model class; without pydantic loaded, nothing is."""
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(cls, type) and issubclass(cls, base)


def schema(cls: type, where: str) -> dict[str, Any]:
    """Return the model's own JSON Schema.

    Args:
        cls: the model.
        where: what the model belongs to, for error messages.

    Raises:
        ToolDefinitionError: when pydantic cannot make one.
    """
    from pydantic import PydanticUserError  # noqa: PLC0415  # loaded already by whoever has a model

    try:
        return cast("type[BaseModel]", cls).model_json_schema()
    except PydanticUserError as error:
        raise ToolDefinitionError(
            f"{where} is {cls.__qualname__}, which has no JSON Schema: {error.message}"
        ) from error


def structure(data: object, cls: type) -> object:
    """Make a model of JSON data, by pydantic's rules for JSON."""
    return cast("type[BaseModel]", cls).model_validate_json(format_json(data))


def unstructure(model: object) -> object:
    """Make JSON data of a model, under the names that its schema uses."""
    return cast("BaseModel", model).model_dump(mode="json", by_alias=True)


def problems(error: BaseException) -> list[tuple[str, str]]:
    """Return what a model found wrong with data, as pairs of a path and a message; empty for any other error."""
    kind = getattr(sys.modules.get("pydantic"), "ValidationError", None)
    if kind is None or not isinstance(error, kind):
        return []
    found = cast("ValidationError", error).errors(include_url=False, include_context=False, include_input=False)
    return [(_path(one["loc"]), one["msg"]) for one in found]


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
