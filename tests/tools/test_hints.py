"""Hints that are text are resolved with every name that their author could use, and refused clearly where that fails."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from agentloop import tool
from agentloop.errors import ToolDefinitionError
from agentloop.values.json import thaw

if TYPE_CHECKING:
    import datetime as dt
    import email.message
    from decimal import Decimal
    from fractions import Missing  # type: ignore[attr-defined]  # what a test is about
    from uuid import UUID as Id  # noqa: N811  # another name

    from missing_module import Something  # type: ignore[import-not-found]  # what a test is about

    from agentloop import ToolContext
    from agentloop.values import AgentState


def schema_of(function: Any) -> Any:
    """Return the schemas of the parameters of a function."""
    return thaw(tool(function).parameters)["properties"]


def test_a_name_that_is_imported_for_type_checkers_is_imported_now() -> None:
    """Parameters, results and what is injected may have types that are imported only under TYPE_CHECKING."""

    def ship(item: Id, day: dt.date, context: ToolContext, state: AgentState | None = None) -> Decimal:
        """Ship."""
        raise NotImplementedError

    assert schema_of(ship) == {
        "item": {"type": "string", "format": "uuid"},
        "day": {"type": "string", "format": "date"},
    }
    assert [kind.__name__ for kind in tool(ship).signature.injected.values()] == ["ToolContext", "AgentState"]
    assert tool(ship).signature.returns is sys.modules["decimal"].Decimal


@dataclass
class Parcel:
    """A class with such a type."""

    id: Id
    price: Decimal | None = None


def test_the_fields_of_a_class_may_have_such_types() -> None:
    """The hints of a class are resolved in the same way."""

    def ship(parcel: Parcel) -> str:
        """Ship."""
        return str(parcel.id)

    prepared = tool(ship).prepare({"parcel": {"id": "12345678-1234-5678-1234-567812345678", "price": "1.10"}})
    assert type(prepared["parcel"].price).__name__ == "Decimal"


def test_a_class_of_the_function_around_is_found() -> None:
    """A tool that is defined in a function may name what that function has."""

    @dataclass
    class Local:
        """A class of this function."""

        number: int

    Other = list[Local]  # noqa: N806  # the name of a type

    def ship(parcel: Local, others: Other) -> Local:
        """Ship."""
        return parcel

    assert tool(ship).prepare({"parcel": {"number": 1}, "others": [{"number": 2}]}) == {
        "parcel": Local(1),
        "others": [Local(2)],
    }


def without_module(item: Something) -> str:
    """Ship."""
    return str(item)


def without_name(item: Missing) -> str:
    """Ship."""
    return str(item)


def without_attribute(item: email.message.Missing) -> str:  # type: ignore[name-defined]  # what the test is about
    """Ship."""
    return str(item)


def without_import(item: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821  # what the test is about
    """Ship."""
    return str(item)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            without_module,
            "'Something' is imported under TYPE_CHECKING alone, and to import it now fails with ModuleNotFoundError: .*; import it",
        ),
        (
            without_name,
            "'Missing' is imported under TYPE_CHECKING alone, and to import it now fails with AttributeError",
        ),
        (without_attribute, "a type hint cannot be resolved: module 'email.message' has no attribute 'Missing'"),
        (without_import, "name 'Nowhere' is not defined; import it, or define it at the top level of the module"),
    ],
)
def test_a_name_that_cannot_be_imported_is_refused_with_the_reason(function: Any, problem: str) -> None:
    """The error names the name, and says what to do."""
    with pytest.raises(ToolDefinitionError, match=problem):
        tool(function)
