"""Sessions over HTTP: how a principal deletes one."""

from __future__ import annotations

from agentloop.durable.sessions import SessionQueue, delete_session
from agentloop.errors import ConfigurationError
from agentloop.service.server.access import Principal, RequestRefused, Scope, unknown_session
from agentloop.service.server.operations import Operations
from agentloop.service.server.record_events import JsonDict


async def delete_own_session(operations: Operations, principal: Principal, name: str) -> JsonDict:
    """Delete a session of a principal's tenant with all its turns, whoever of the tenant has sent their messages.

    Args:
        operations: the executions of the server.
        principal: who asks.
        name: what the client calls the session, or its id.

    Raises:
        RequestRefused: the principal may not delete, there is no such session of its tenant, or a message of it waits for its turn.
        JournalConflict: a live process runs one of its turns, or an unfinished fork needs one.
    """
    principal.require(Scope.DELETE)
    session, journal = principal.session_id(name), operations.executions.journal
    try:
        queue = SessionQueue.of(journal, session)
    except ConfigurationError as error:
        raise RequestRefused(404, "no_sessions", f"this server keeps no sessions: {error}") from error
    for command in await queue.waiting():
        # Whoever is to run it, here or among the workers, would begin the session anew.
        if await queue.journal.head(command.begins) is None:
            raise RequestRefused(409, "conflict", f"the message {command.begins} waits in the session; stop it first")
    count = await delete_session(journal, session)
    if not count:
        raise unknown_session()
    return {"session": session, "turns": count}
