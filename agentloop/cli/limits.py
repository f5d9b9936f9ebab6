"""What an execution may use up, as options of a command."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from attrs import frozen

from agentloop.cli.bad_usage import BadUsage
from agentloop.interception.budget import Budget
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.time_limit import TimeLimit


@frozen(kw_only=True)
class Limits:
    """What an execution may use up.

    Attributes:
        max_steps: the most steps.
        timeout: the most seconds; None for no limit.
        max_tokens: the most tokens, read and written; None for no limit.
        max_cost: the most dollars; None for no limit.
    """

    max_steps: int
    timeout: float | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    def interceptors(self, model: str) -> list[Interceptor]:
        """Return what keeps the limits other than that of steps.

        Args:
            model: the model that is asked, by whose price money is counted.

        Raises:
            BadUsage: when the time is none.
            ConfigurationError: when prices are needed and not installed.
        """
        made: list[Interceptor] = []
        if self.timeout is not None:
            try:
                made.append(TimeLimit(self.timeout))
            except ValueError as error:
                raise BadUsage(f"--timeout is a number of seconds above 0, not {self.timeout:g}") from error
        if self.max_tokens is not None or self.max_cost is not None:
            made.append(Budget(tokens=self.max_tokens, cost=self.max_cost, model=model))
        return made


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for limits to a command, which gets them as its argument `limits`."""

    @wraps(command)
    def with_limits(
        *given: Any,
        max_steps: int,
        timeout: float | None,
        max_tokens: int | None,
        max_cost: float | None,
        **options: Any,
    ) -> None:
        limits = Limits(max_steps=max_steps, timeout=timeout, max_tokens=max_tokens, max_cost=max_cost)
        command(*given, limits=limits, **options)

    for option in reversed(_OPTIONS):
        option(with_limits)
    return with_limits


_OPTIONS = (
    click.option(
        "--max-steps", default=50, show_default=True, type=click.IntRange(min=1), help="Stop after this many steps."
    ),
    click.option("--timeout", type=float, metavar="SECONDS", help="Stop after this long. No limit when left out."),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="Use no more tokens than this in all, read and written; a part is kept back for a last answer.",
    ),
    click.option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        metavar="DOLLARS",
        help="Spend no more than this, by the prices that providers publish (needs the extra prices). A model whose price is "
        "not known is taken for a dear one.",
    ),
)
