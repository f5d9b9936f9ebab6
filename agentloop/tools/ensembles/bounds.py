"""Bounds of parameters, as `Annotated` takes them."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class Bounds:
    """Bounds of a number, of a text's characters or of a list's items; what is left out is not bounded.

    Attributes:
        ge: the least number.
        le: the greatest number.
        min_length: the fewest characters or items.
        max_length: the most characters or items.
    """

    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
