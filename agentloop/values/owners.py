"""To whom something belongs that executions share: a principal, a tenant, or what a function says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeGuard

from attrs import Attribute

from agentloop.errors.kinds import ConfigurationError
from agentloop.values.run_requests import Identity, principal_of
from agentloop.values.state import AgentState

Asker: TypeAlias = Literal["principal", "tenant"]
"""Whoever asks for an execution: the principal, as `ada` or `tenant/ada`, or its tenant."""
Owner: TypeAlias = Asker | Callable[[AgentState], str]
"""To whom something belongs: whoever asks for an execution, or what a function of the state returns."""

_ASKERS = ("principal", "tenant")
_MAX_OWNER = 200


def is_asker(by: object) -> TypeGuard[Asker]:
    """Return whether this is one of the words for whoever asks."""
    return isinstance(by, str) and by in _ASKERS


def check_owner(by: object) -> None:
    """Check what names an owner.

    Raises:
        ConfigurationError: it is neither a word for whoever asks nor a function.
    """
    if not is_asker(by) and not callable(by):
        raise ConfigurationError(f"by is 'principal', 'tenant' or a function of the state, not {by!r:.80}")


def check_asker(by: object, name: str = "by") -> None:
    """Check one of the words for whoever asks.

    Raises:
        ConfigurationError: it is something else.
    """
    if not is_asker(by):
        raise ConfigurationError(f"{name} is 'principal' or 'tenant', not {by!r:.80}")


def none_or_asker(_: object, attribute: Attribute[Any], by: object) -> None:
    """Check an attribute that has a word for whoever asks, or None, as attrs calls a validator.

    Raises:
        ConfigurationError: it has something else.
    """
    if by is not None:
        check_asker(by, attribute.name)


def find_owner(by: Owner | None, state: AgentState, subject: str) -> str:
    """Return the name of an owner; empty for everybody.

    Args:
        by: what names the owner; None for everybody.
        state: the state of the execution.
        subject: what belongs to the owner, as the subject of an error's sentence.

    Raises:
        ConfigurationError: nobody is known, or the name is too long.
    """
    if by is None:
        return ""
    if not callable(by):
        return name_asker(by, principal_of(state), f"{subject} in the execution {state.execution_id!r}")
    owner: object = by(state)
    if not isinstance(owner, str) or not owner:
        raise ConfigurationError(
            f"{subject} does not know whose request this is: its function names nobody for the execution "
            f"{state.execution_id!r}; let it return a text"
        )
    return _checked(owner)


def name_asker(by: Asker, principal: Identity | None, subject: str) -> str:
    """Return the name of whoever asks; two tenants may have principals of the same name, which differ by this.

    Args:
        by: whether the principal or its tenant is meant.
        principal: who asks; None where nobody is known.
        subject: what belongs to them, as the subject of an error's sentence.

    Raises:
        ConfigurationError: nobody is known, the principal has no tenant, or the name is too long.
    """
    if principal is None or (by == "tenant" and not principal.tenant):
        fix = "Identity(…, tenant=…)" if by == "tenant" else "Identity(…)"
        raise ConfigurationError(
            f"{subject} does not know whose request this is: by={by!r} names nobody; run the execution for a principal: "
            f"loop.execute(…, principal={fix})"
        )
    if by == "tenant":
        return _checked(principal.tenant)
    if not principal.tenant:
        return _checked(_escaped(principal.name))
    return _checked(f"{_escaped(principal.tenant)}/{_escaped(principal.name)}")


def _checked(owner: str) -> str:
    if len(owner) > _MAX_OWNER:
        raise ConfigurationError(f"the name of an owner has at most {_MAX_OWNER} characters, not {len(owner)}")
    return owner


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")
