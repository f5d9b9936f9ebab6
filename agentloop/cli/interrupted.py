"""The end of a command by Ctrl-C."""

from __future__ import annotations


class Interrupted(Exception):
    """A person stopped the execution; the message is the account of what was done until then."""
