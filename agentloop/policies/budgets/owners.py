"""For whom an account is kept: everybody, a principal, a tenant, or what a function says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from agentloop.errors import ConfigurationError
from agentloop.values.run_requests import Identity, principal_of
from agentloop.values.state import AgentState

AccountOwner: TypeAlias = Literal["principal", "tenant"] | Callable[[AgentState], str]
"""What names the owner of an account: who asks for an execution, as `ada` or `tenant/ada`; the tenant; or a function of the state."""

_MAX_OWNER = 200


def find_owner(by: AccountOwner | None, state: AgentState, account: str) -> str:
    """Return the name of the owner of an account; empty for everybody.

    Args:
        by: what names the owner; None for everybody.
        state: the state of the execution.
        account: the name of the account, for errors.

    Raises:
        ConfigurationError: nobody is known, or the name is too long.
    """
    if by is None:
        return ""
    owner: object = by(state) if callable(by) else _name_of(by, principal_of(state))
    if not isinstance(owner, str) or not owner:
        source = f"by={by!r}" if isinstance(by, str) else "its function"
        raise ConfigurationError(
            f"the budget account {account!r} does not know whose request this is: {source} names nobody for the execution "
            f"{state.execution_id!r}; run the execution for a principal, or give by= a function that returns a text"
        )
    if len(owner) > _MAX_OWNER:
        raise ConfigurationError(f"the owner of an account has at most {_MAX_OWNER} characters, not {len(owner)}")
    return owner


def _name_of(by: str, principal: Identity | None) -> str:
    if principal is None:
        return ""
    if by == "tenant" or not principal.tenant:
        return principal.tenant if by == "tenant" else _escaped(principal.name)
    # Two tenants may have principals of the same name.
    return f"{_escaped(principal.tenant)}/{_escaped(principal.name)}"


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")
