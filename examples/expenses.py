"""Expenses over HTTP: each employee has a token, each company its own book, and large sums wait for a yes.

Needs starlette and uvicorn. `python examples/expenses.py` serves it, with its record in the current folder; then

    curl -H "Authorization: Bearer token-of-ada" localhost:8000/executions --json '{"input": "72 euros, dinner."}'
"""

from __future__ import annotations

import asyncio
from typing import Literal

from agentloop import AgentLoop, RequireApproval, ScriptedInference, SqliteJournal, ToolCall, ToolContext, tool
from agentloop.interception import Rule
from agentloop.loop import RunRequest
from agentloop.service.server import Principal, Scope, serve

LIMITS = {"travel": 50_000, "meals": 6_000, "hardware": 120_000}
BOOKS: dict[str, list[str]] = {"acme": [], "bolt": []}
SCOPES = frozenset({Scope.START, Scope.READ, Scope.DECIDE})
EMPLOYEES = [Principal(name="ada", tenant="acme", scopes=SCOPES), Principal(name="bob", tenant="bolt", scopes=SCOPES)]
TOKENS = {f"token-of-{employee.name}": employee for employee in EMPLOYEES}


@tool(effect="pure")
def limits() -> dict[str, int]:
    """Return the limits of the company, in cents."""
    return LIMITS


@tool
def book_expense(category: Literal["travel", "meals", "hardware"], cents: int, context: ToolContext[list[str]]) -> str:
    """Book an expense of the employee who asks."""
    context.dependencies.append(f"{context.principal and context.principal.name}: {category}, {cents / 100:.2f} euros")
    return "booked"


def book_of(request: RunRequest) -> list[str]:
    if request.principal is None:
        raise PermissionError("an expense is of an employee, whom the server knows by the token")
    return BOOKS[request.principal.tenant]


BOOK = ToolCall("2", "book_expense", '{"category": "meals", "cents": 7200}')
LARGE = Rule("book_expense", when=lambda point: point.arguments["cents"] > LIMITS[point.arguments["category"]])
loop = AgentLoop.for_model(
    ScriptedInference(ToolCall("1", "limits", "{}"), BOOK, "It is booked."),
    name="expenses",
    tools=[limits, book_expense],
    interceptors=[RequireApproval([LARGE])],
    dependencies=book_of,
    journal=SqliteJournal("expenses.db"),
)

if __name__ == "__main__":
    asyncio.run(serve(loop, authenticate=TOKENS.get))
