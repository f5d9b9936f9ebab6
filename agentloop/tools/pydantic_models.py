"""pydantic models as parameters and results. This is the only file that knows pydantic; it never imports it first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from agentloop.errors import ToolDefinitionError
from agentloop.tools.fields import NO_DEFAULT, Field
from agentloop.values.json import format_json

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo


def is_model(cls: object) -> bool:
    """Return whether this is a pydantic model class. Without pydantic imported, no class is."""
    # The module of a model has imported pydantic, so this never has to.
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(cls, type) and issubclass(cls, base)


def schema(cls: type, where: str) -> dict[str, Any]:
    """Return the JSON Schema that pydantic generates.

    Args:
        cls: the model.
        where: the parameter or field that has the type, for error messages.

    Raises:
        ToolDefinitionError: when pydantic cannot generate one.
    """
    from pydantic import PydanticUserError  # noqa: PLC0415  # imported already by the module of the model

    try:
        return cast("type[BaseModel]", cls).model_json_schema()
    except PydanticUserError as error:
        raise ToolDefinitionError(
            f"{where} is {cls.__qualname__}, which has no JSON Schema: {error.message}"
        ) from error


def fields(cls: type) -> list[Field]:
    """Return the fields of a model, as JSON data has them."""
    return [_field(name, info) for name, info in cast("type[BaseModel]", cls).model_fields.items()]


def _field(name: str, info: FieldInfo) -> Field:
    alias = info.validation_alias
    choices = (
        [alias] if isinstance(alias, str) else [each for each in getattr(alias, "choices", ()) if isinstance(each, str)]
    )
    first, *others = [*choices, name]
    made = info.default_factory
    has_value = not info.is_required() and made is None
    return Field(
        first, info.annotation, info.is_required(), info.default if has_value else NO_DEFAULT, made, tuple(others)
    )


def structure(data: object, cls: type) -> object:
    """Convert JSON data to a model, by pydantic's rules for JSON."""
    # Only the rules for JSON text accept dates and bytes that are written as text in strict models.
    return cast("type[BaseModel]", cls).model_validate_json(format_json(data))


def unstructure(model: object) -> object:
    """Convert a model to JSON data, under the names of its schema."""
    return cast("BaseModel", model).model_dump(mode="json", by_alias=True)


def problems(error: BaseException) -> list[tuple[str, str]]:
    """Return the problems of a pydantic `ValidationError`, as pairs of a path and a message; empty for any other error."""
    kind = getattr(sys.modules.get("pydantic"), "ValidationError", None)
    if kind is None or not isinstance(error, kind):
        return []
    details = cast("ValidationError", error).errors(include_url=False, include_context=False, include_input=False)
    return [(_path(detail["loc"]), detail["msg"]) for detail in details]


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
