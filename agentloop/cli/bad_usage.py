"""Errors of the one who typed the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from agentloop.errors import ConfigurationError, ToolDefinitionError


class BadUsage(click.ClickException):
    """What was asked for cannot be done; the message says what to change. Ends with exit code 2."""

    exit_code = 2


@contextmanager
def told_as_bad_usage() -> Iterator[None]:
    """Tell what cannot work as it is set up: models, keys, tools, and certificates that cannot be read.

    What goes wrong in an execution itself is in its state and does not pass here.

    Raises:
        BadUsage: for what was raised inside.
    """
    try:
        yield
    except (ConfigurationError, ToolDefinitionError) as error:
        raise BadUsage(str(error)) from error
    except OSError as error:
        raise BadUsage(f"the execution cannot begin: {type(error).__name__}: {error}") from error
