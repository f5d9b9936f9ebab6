"""How an execution was asked for: by whom, and with which headers, as its state holds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import field, frozen

from agentloop.errors.kinds import InvalidParameter
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze_object
from agentloop.values.state import AgentState
from agentloop.values.value import Value

REQUEST = "agentloop.request"
"""The owner of the extension of a state that holds how its execution was asked for."""


def _as_scopes(scopes: Iterable[str]) -> frozenset[str]:
    if isinstance(scopes, str):
        raise InvalidParameter(f"the scopes of a principal are a list of texts; write scopes=[{scopes!r:.80}]")
    return frozenset(map(str, scopes))


@frozen(eq=False, repr=False)
class Identity(Value):
    """Who asks for an execution: a person or a program, as the application has authenticated it.

    Attributes:
        name: the name.
        tenant: the customer, team or other group that it belongs to; empty for none.
        scopes: what it may do, in words of the application.

    Raises:
        InvalidParameter: the name is empty, or an attribute has another type.
    """

    name: str
    tenant: str = field(default="", kw_only=True)
    scopes: frozenset[str] = field(default=frozenset(), converter=_as_scopes, kw_only=True)

    def __attrs_post_init__(self) -> None:
        texts: tuple[object, object] = self.name, self.tenant
        if not all(isinstance(text, str) for text in texts) or not self.name.strip():
            raise InvalidParameter(
                f"a principal has a name and perhaps a tenant, as texts: not {self.name!r:.80} and {self.tenant!r:.80}"
            )

    def __str__(self) -> str:
        return f"{self.name}@{self.tenant}" if self.tenant else self.name


@frozen(eq=False, repr=False, kw_only=True)
class RunRequest(Value):
    """What is known where an execution begins, or where another process continues it.

    Attributes:
        execution_id: the execution.
        principal: who asks; None where nobody is known.
        metadata: the metadata of the state's context.
        headers: the headers of the HTTP request that the server was allowed to keep, by lower-case names; empty elsewhere.
    """

    execution_id: str
    principal: Identity | None = None
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    headers: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, repr=False)


def request_of(state: AgentState) -> RunRequest:
    """Return how the execution of a state was asked for."""
    return read_request(state.execution_id, {**_stored(state), "metadata": state.context.metadata})


def read_request(execution_id: str, stored: Mapping[str, JsonValue]) -> RunRequest:
    """Return how an execution was asked for, from JSON as `stored_request` returns it."""
    headers, metadata = [stored.get(name) for name in ("headers", "metadata")]
    return RunRequest(
        execution_id=execution_id,
        principal=read_principal(stored),
        metadata=metadata if isinstance(metadata, Mapping) else EMPTY_OBJECT,
        headers=headers if isinstance(headers, Mapping) else EMPTY_OBJECT,
    )


def read_principal(stored: Mapping[str, JsonValue]) -> Identity | None:
    """Return who asked for an execution, from JSON as `stored_request` returns it; None where nobody is known."""
    match stored.get("principal"):
        case {"name": str(name), "tenant": str(tenant), "scopes": [*scopes]} if name.strip():
            return Identity(name, tenant=tenant, scopes=[str(scope) for scope in scopes])
    return None


def stored_request(request: RunRequest) -> JsonObject:
    """Return how an execution was asked for as JSON, without its id; empty if nothing is known."""
    stored: dict[str, object] = {}
    if request.principal is not None:
        scopes = sorted(request.principal.scopes)
        stored["principal"] = {"name": request.principal.name, "tenant": request.principal.tenant, "scopes": scopes}
    if request.headers:
        stored["headers"] = request.headers
    if request.metadata:
        stored["metadata"] = request.metadata
    return freeze_object(stored)


def principal_of(state: AgentState) -> Identity | None:
    """Return who has asked for the execution of a state; None where nobody is known."""
    return read_principal(_stored(state))


def with_request(
    state: AgentState,
    execution_id: str,
    principal: Identity | None,
    headers: Mapping[str, JsonValue] = EMPTY_OBJECT,
) -> AgentState:
    """Return a state that holds how an execution is asked for.

    Args:
        state: the state with which the execution starts.
        execution_id: the execution.
        principal: who asks; None where nobody is known.
        headers: headers of the request that are kept, by name.
    """
    return state.with_extension(REQUEST, request_extensions(execution_id, principal, headers).get(REQUEST))


def request_extensions(
    execution_id: str, principal: Identity | None, headers: Mapping[str, JsonValue] = EMPTY_OBJECT
) -> JsonObject:
    """Return the extensions of a state that hold how an execution is asked for; empty if nothing is known.

    Args:
        execution_id: the execution.
        principal: who asks; None where nobody is known.
        headers: headers of the request that are kept, by name.
    """
    kept = {name.lower(): text for name, text in headers.items()}
    stored = stored_request(RunRequest(execution_id=execution_id, principal=principal, headers=kept))
    return freeze_object({REQUEST: {"execution": execution_id, **stored}} if stored else {})


def begin_request(state: AgentState, asked: RunRequest | None, principal: Identity | None = None) -> AgentState:
    """Return the state of an execution that begins, without what an earlier execution of the conversation was asked with.

    Args:
        state: the state, with the id of the execution.
        asked: how the execution was asked for whose call this one serves; None to keep what the state holds for this execution.
        principal: who asks, in place of who does so in the state; None to keep that.
    """
    if asked is not None:
        return with_request(state, state.execution_id, principal or asked.principal, asked.headers)
    if _stored(state).get("execution") != state.execution_id:
        return with_request(state, state.execution_id, principal)
    return state if principal is None else with_request(state, state.execution_id, principal, request_of(state).headers)


def _stored(state: AgentState) -> JsonObject:
    stored = state.extension(REQUEST)
    return stored if isinstance(stored, Mapping) else EMPTY_OBJECT
