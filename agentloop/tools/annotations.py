"""What stands beside a type in `Annotated`, as JSON Schema keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_BOUNDS: Mapping[str, str] = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "description": "description",
    "documentation": "description",
}


_ARRAY_WORDS = {"minLength": "minItems", "maxLength": "maxItems"}


def annotation_keywords(annotations: Iterable[Any], json_type: str | None = None) -> dict[str, Any]:
    """Translate annotations to schema keywords.

    A text is the description; an object with attributes such as `ge` or `max_length` (as those of annotated-types,
    pydantic's `Field` and `typing.Doc` have) gives bounds and description. Others are ignored.

    Args:
        annotations: what stands beside the type.
        json_type: the JSON type of the type; lengths of an array bound its items.
    """
    keywords: dict[str, Any] = {}
    for annotation in annotations:
        if isinstance(annotation, str):
            keywords["description"] = annotation
        else:
            for one in (annotation, *getattr(annotation, "metadata", ())):
                keywords.update(_bounds(one))
    if json_type == "array":
        return {_ARRAY_WORDS.get(keyword, keyword): value for keyword, value in keywords.items()}
    return keywords


def _bounds(annotation: Any) -> dict[str, Any]:
    found = {keyword: getattr(annotation, name, None) for name, keyword in _BOUNDS.items()}
    return {keyword: value for keyword, value in found.items() if isinstance(value, int | float | str)}
