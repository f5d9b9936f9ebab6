"""The signs at the beginning of lines."""

from __future__ import annotations

from attrs import frozen


@frozen
class Symbols:
    """Signs for what happens in an execution; each fits into two columns.

    Attributes:
        call: a tool begins to run.
        success: it returned.
        failure: it did not.
        block: it was kept from running.
        retry: the model is asked again.
        note: anything else worth a line.
    """

    call: str
    success: str
    failure: str
    block: str
    retry: str
    note: str

    @classmethod
    def of(cls, encoding: str) -> Symbols:
        """Return the signs that an encoding can write."""
        return _PICTURES if encoding.lower().startswith("utf") else _LETTERS


_PICTURES = Symbols(call="→", success="✓", failure="✗", block="⛔", retry="↻", note="·")
_LETTERS = Symbols(call="->", success="ok", failure="x", block="#", retry="~", note="-")
