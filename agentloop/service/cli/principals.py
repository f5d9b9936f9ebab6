"""The option `--principal`: who asks for what a command runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from agentloop.errors import InvalidParameter
from agentloop.values.run_requests import Identity

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


class PrincipalType(click.ParamType):
    """The value of `--principal`: a name, or a name, an @ and a tenant. A name that has an @ itself, such as an address, needs one more."""

    name = "principal"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Identity:
        """Return the principal that a value names; the tenant is what follows the last @.

        Raises:
            click.BadParameter: the value names nobody, or has bytes that are not UTF-8.
        """
        if isinstance(value, Identity):
            return value
        text = str(value)
        name, at, tenant = text.rpartition("@")
        try:
            text.encode()
            return Identity(name, tenant=tenant) if at else Identity(text)
        except (InvalidParameter, UnicodeEncodeError):
            self.fail(f"{value!a:.100} names nobody; write NAME or NAME@TENANT, such as ada@acme", param, ctx)


principal_option: Callable[[FC], FC] = click.option(
    "--principal",
    type=PrincipalType(),
    metavar="NAME[@TENANT]",
    help="Who asks for it, as tools, interceptors and records know them. The tenant follows the last @.",
)
"""The option `--principal`, whose value is an `Identity`."""
