"""pydantic models as parameters and results. This is the only file that knows pydantic; it never imports it first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

from agentloop.errors import ToolDefinitionError
from agentloop.tools.fields import NO_DEFAULT, Field
from agentloop.values.json import format_json

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter, ValidationError
    from pydantic.fields import FieldInfo


def is_model(cls: object) -> bool:
    """Return whether this is a pydantic model class. Without pydantic imported, no class is."""
    # The module of a model has imported pydantic, so this never has to.
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and isinstance(cls, type) and issubclass(cls, base)


def is_validated_class(cls: object) -> bool:
    """Return whether pydantic converts data to objects of a class that is no model, such as `HttpUrl` and `SecretStr`."""
    return "pydantic" in sys.modules and isinstance(cls, type) and hasattr(cls, "__get_pydantic_core_schema__")


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


# --- annotations ----------------------------------------------------------------------------------------------------

_OWN_FIELD = frozenset({"description", "title", "examples", "deprecated", "json_schema_extra", "discriminator"})
"""The parameters of `Field` that are applied; its constraints are objects of their own."""
_OWN_METADATA = frozenset({"pattern"})
"""The attributes of pydantic's general constraint that a schema expresses."""


def constraints_in(annotation: object) -> list[Any]:
    """Return the constraints that pydantic's `Field` holds; none for another annotation."""
    held = getattr(annotation, "metadata", None) if _is_field(annotation) else None
    return held if isinstance(held, list) else []


def needs_adapter(annotation: object) -> bool:
    """Return whether only pydantic can apply an annotation, such as a validator."""
    if _is_field(annotation):
        return getattr(annotation, "discriminator", None) is not None
    if getattr(annotation, "__is_annotated_types_grouped_metadata__", False):
        return False  # what it holds decides
    if type(annotation).__name__.endswith("GeneralMetadata") and _is_own(annotation):
        return not vars(annotation).keys() <= _OWN_METADATA
    return _is_own(annotation) or hasattr(annotation, "__get_pydantic_core_schema__")


def is_annotation(cls: type) -> bool:
    """Return whether a class is an annotation as it is, such as `SkipValidation`."""
    return isinstance(vars(cls).get("__get_pydantic_core_schema__"), classmethod) and _is_library(cls.__module__)


def is_strict(annotation: object) -> bool:
    """Return whether an annotation says that a value of another type is refused."""
    return _is_own(annotation) and getattr(annotation, "strict", None) is True


def is_strict_model(cls: type) -> bool:
    """Return whether a model, or one of its fields, refuses values of other types."""
    model = cast("type[BaseModel]", cls)
    return bool(model.model_config.get("strict")) or any(
        is_strict(constraint) for field in model.model_fields.values() for constraint in field.metadata
    )


def problem_of(annotation: object) -> str:
    """Return why a parameter cannot have this `Field`; empty if it can, and for another annotation."""
    if not _is_field(annotation):
        function = getattr(annotation, "func", len) if _is_own(annotation) else len
        return "" if callable(function) else f"{type(annotation).__name__} takes a function, not {function!r:.60}"
    given = getattr(annotation, "_attributes_set", {})
    if "default" in given or "default_factory" in given:
        return "the default of a parameter is written behind it, as in x: Annotated[int, …] = 5"
    wrong = sorted(given.keys() - _OWN_FIELD)
    if wrong:
        return f"{' and '.join(wrong)} of Field has no effect on a parameter"
    is_called = callable(given.get("json_schema_extra"))
    return "json_schema_extra is a dict: a function is not called here" if is_called else ""


def keywords_of(annotation: object) -> dict[str, Any]:
    """Return the keywords of a schema that a `Field` has besides its constraints and its description."""
    given: dict[str, Any] = getattr(annotation, "_attributes_set", {}) if _is_field(annotation) else {}
    known = {name: given[name] for name in ("title", "examples") if given.get(name) is not None}
    deprecated = {"deprecated": True} if given.get("deprecated") else {}
    return {**known, **deprecated, **(given.get("json_schema_extra") or {})}


def adapter_of(hint: Any, where: str) -> TypeAdapter[Any]:
    """Return what converts JSON data to an annotated type.

    Raises:
        ToolDefinitionError: pydantic cannot apply the annotations to the type.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415  # imported already by the module of the annotation

    try:
        return TypeAdapter(hint)
    except Exception as error:
        message = str(error).partition("\n")[0]
        problem = (
            "is a class that pydantic cannot use"
            if isinstance(hint, type)
            else "has a constraint that cannot be applied"
        )
        raise ToolDefinitionError(f"{where} {problem}: {message}") from error


def adapted_schema(hint: Any, where: str) -> dict[str, Any]:
    """Return the JSON Schema of an annotated type that pydantic converts.

    Raises:
        ToolDefinitionError: there is none.
    """
    adapter = adapter_of(hint, where)
    try:
        return adapter.json_schema()
    except Exception as error:
        raise ToolDefinitionError(f"{where} has no JSON Schema: {str(error).partition(chr(10))[0]}") from error


def structure_validated(data: object, cls: type) -> Any:
    """Convert JSON data to a class that pydantic validates."""
    return structure_adapted(_class_adapter(cls), data)


def unstructure_validated(cls: type) -> Callable[[object], object]:
    """Return the conversion to JSON data of the objects of a class that pydantic validates."""
    return partial(_class_adapter(cls).dump_python, mode="json")


@lru_cache(maxsize=256)
def _class_adapter(cls: type) -> TypeAdapter[Any]:
    return adapter_of(cls, "the type")


def structure_adapted(adapter: TypeAdapter[Any], data: object) -> Any:
    """Convert JSON data to an annotated type, by pydantic's rules for JSON."""
    return adapter.validate_json(format_json(data))


def _is_own(annotation: object) -> bool:
    return _is_library(type(annotation).__module__)


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in {"pydantic", "pydantic_core", "pydantic_extra_types"}


def _is_field(annotation: object) -> bool:
    return _is_own(annotation) and type(annotation).__name__ == "FieldInfo"
