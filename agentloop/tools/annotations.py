"""What stands beside a type in `Annotated`, as JSON Schema keywords."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decimal import Decimal

_NUMBERS: Mapping[str, str] = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_TEXTS: Mapping[str, str] = {"pattern": "pattern", "description": "description", "documentation": "description"}
_LENGTHS: Mapping[str | None, tuple[str, ...]] = {
    "string": ("Length",),
    "array": ("Items",),
    "object": ("Properties",),
    None: ("Length", "Items", "Properties"),
}

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": ge,
    "exclusiveMinimum": gt,
    "maximum": le,
    "exclusiveMaximum": lt,
    "multipleOf": lambda number, divisor: number % divisor == 0,
}


def annotation_keywords(annotations: Iterable[Any], json_type: str | None = None) -> dict[str, Any]:
    """Translate annotations to schema keywords.

    A text is the description; an object with attributes such as `ge` or `max_length` (as those of annotated-types,
    pydantic's `Field` and `typing.Doc` have) gives bounds and description. Others are ignored.

    Args:
        annotations: what stands beside the type.
        json_type: the JSON type of the type; None when it has several. Lengths bound the characters of text, the items of
            arrays and the entries of objects.
    """
    keywords: dict[str, Any] = {}
    for annotation in annotations:
        if isinstance(annotation, str):
            keywords["description"] = annotation
        else:
            for one in (annotation, *_metadata(annotation)):
                keywords.update(_keywords(one, _LENGTHS.get(json_type, ())))
    return keywords


def broken_bound(number: Decimal, keywords: Mapping[str, Any]) -> str | None:
    """Return the first of these keywords that a number does not keep, in words; None when it keeps all.

    A schema bounds the numbers of JSON; a Decimal that was sent as text is bounded here.
    """
    for keyword, holds in _COMPARISONS.items():
        if keyword in keywords and not holds(number, type(number)(str(keywords[keyword]))):
            return f"{keyword} is {keywords[keyword]}"
    return None


def _metadata(annotation: Any) -> Iterable[Any]:
    inner = getattr(annotation, "metadata", ())
    return inner if isinstance(inner, list | tuple) else ()


def _keywords(annotation: Any, lengths: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, keyword in _NUMBERS.items():
        bound = getattr(annotation, name, None)
        if isinstance(bound, int | float) and isfinite(bound):
            found[keyword] = bound
    for name, keyword in _TEXTS.items():
        text = getattr(annotation, name, None)
        if isinstance(text, str):
            found[keyword] = text
    for end in ("min", "max"):
        length = getattr(annotation, f"{end}_length", None)
        if isinstance(length, int):
            found.update({f"{end}{what}": length for what in lengths})
    return found
