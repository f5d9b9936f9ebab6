"""For whom an account is kept: everybody, a principal, a tenant, or what a function says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from agentloop.errors import ConfigurationError
from agentloop.values.state import AgentState

AccountOwner: TypeAlias = Literal["principal", "tenant"] | Callable[[AgentState], str]
"""What names the owner of an account: who asks for an execution, the tenant of whoever asks, or a function of the state."""

_REQUEST = "agentloop.request"
"""The owner of the extension of a state that holds how its execution was asked for."""
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
    owner = by(state) if callable(by) else _name_in_request(by, state)
    if not isinstance(owner, str) or not owner:
        source = f"by={by!r}" if isinstance(by, str) else "its function"
        raise ConfigurationError(
            f"the budget account {account!r} does not know whose request this is: {source} names nobody for the execution "
            f"{state.execution_id!r}; run the execution for a principal, or give by= a function that returns a text"
        )
    if len(owner) > _MAX_OWNER:
        raise ConfigurationError(f"the owner of an account has at most {_MAX_OWNER} characters, not {len(owner)}")
    return owner


def _name_in_request(by: str, state: AgentState) -> object:
    request: object = state.extension(_REQUEST)
    principal = request.get("principal") if isinstance(request, Mapping) else None
    if not isinstance(principal, Mapping):
        return ""
    return principal.get("tenant" if by == "tenant" else "name")
