"""Grants over HTTP: which a principal can see, and how it ends one."""

from __future__ import annotations

from urllib.parse import quote

from agentloop.contracts.can_keep_grants import CanKeepGrants
from agentloop.service.server.access import Principal, RequestRefused, Scope
from agentloop.service.server.operations import Operations
from agentloop.service.server.record_events import JsonDict
from agentloop.values.grants import GrantState, describe_grant


async def list_grants(operations: Operations, principal: Principal) -> JsonDict:
    """Return the grants that were given in executions which a principal may see, or beforehand for its calls, oldest first.

    Raises:
        RequestRefused: the principal may not read.
    """
    principal.require(Scope.READ)
    now = operations.clock.now()
    states = await _keeper(operations).grants()
    return {"grants": [describe_grant(state, now) for state in states if _may_see(principal, state)]}


async def revoke_grant(operations: Operations, principal: Principal, grant_id: str) -> JsonDict:
    """End a grant, and return it.

    Raises:
        RequestRefused: the principal may not decide, or there is no such grant that it may see.
    """
    principal.require(Scope.DECIDE)
    keeper, now = _keeper(operations), operations.clock.now()
    known = {state.id for state in await keeper.grants() if _may_see(principal, state)}
    state = None
    if grant_id in known:
        state = await keeper.update_grant(grant_id, lambda stored: stored.revoke(now, principal.name))
    if state is None:
        raise RequestRefused(404, "not_found", "there is no such grant, or it belongs to another principal")
    return describe_grant(state, now)


def _keeper(operations: Operations) -> CanKeepGrants:
    journal = operations.executions.journal
    if not isinstance(journal, CanKeepGrants):
        raise RequestRefused(404, "no_grants", "the journal of this server keeps no grants")
    return journal


def _may_see(principal: Principal, state: GrantState) -> bool:
    if state.key:  # of a call, which begins with the id of its execution
        return principal.may_see(state.key)
    tenant, name = [quote(text, safe="") for text in (principal.tenant, principal.name)]
    own = {f"{tenant}/{name}", *([f"{tenant}/"] if tenant else [])}
    return Scope.ALL in principal.scopes or state.owner in own
