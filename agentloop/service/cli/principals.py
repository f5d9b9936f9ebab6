"""The option `--principal`: who asks for what a command runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agentloop.errors import InvalidParameter
from agentloop.values.run_requests import Identity

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


def _read_principal(context: click.Context, parameter: click.Parameter, value: str | None) -> Identity | None:
    """Return the principal that an option names: a name, or a name, an @ and a tenant; None without the option.

    A name that has an @ itself, such as an address, needs one more.

    Raises:
        click.BadParameter: the value names nobody, or has bytes that are not UTF-8.
    """
    if value is None:
        return None
    name, at, tenant = value.rpartition("@")
    try:
        value.encode()
        return Identity(name, tenant=tenant) if at else Identity(value)
    except (InvalidParameter, UnicodeEncodeError):
        problem = f"{value!a:.100} names nobody; write NAME or NAME@TENANT, such as ada@acme"
        raise click.BadParameter(problem, context, parameter) from None


principal_option: Callable[[FC], FC] = click.option(
    "--principal",
    callback=_read_principal,
    metavar="NAME[@TENANT]",
    help="Who asks for it, as tools, interceptors and records know them. The tenant follows the last @.",
)
"""The option `--principal`, whose value is an `Identity`."""
