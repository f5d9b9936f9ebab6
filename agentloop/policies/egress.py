"""The question before data leaves by a call that a stranger may have asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_intercept import CanForetellQuestions
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rules import Rule, as_rules, cover, first_match, references_in
from agentloop.policies.web_addresses import DEFAULT_PORTS, Place, named_places, places_of_address, redirects_to
from agentloop.values.decisions import Approve, Edit
from agentloop.values.json import JsonObject
from agentloop.values.messages import Message
from agentloop.values.parts import ProviderPart, Text
from agentloop.values.points import AroundToolUse, BeforeToolUse, ProceedToolUse
from agentloop.values.records import outer_key
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolExchange, ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import instance_of

OWNER: Final = "agentloop.egress"
"""The owner of the approved servers of an execution among the extensions of a state."""

_OWN_WORDS: Final = frozenset({ToolStatus.REJECTED, ToolStatus.BLOCKED, ToolStatus.TIMED_OUT, ToolStatus.CANCELLED})
"""The statuses of calls whose outcome is told in words of the package, and not in words of a tool."""

# --- texts that were read, and places that were named ---------------------------------------------------------------


def has_others_words(message: Message) -> bool:
    """Return whether a message has text, or media, that a stranger may have written.

    Such are the results of all tools, the findings of the provider's own tools, and media and text that the user has attached.
    """
    if message.role == "user":
        return bool(message.attached) or any(not isinstance(part, Text) for part in message.parts)
    return any(
        isinstance(part, ProviderPart) or (isinstance(part, ToolExchange) and part.execution.status not in _OWN_WORDS)
        for part in message.parts
    )


def places_named_by_user(state: AgentState) -> frozenset[Place]:
    """Return the places that the user names in the messages of a conversation, outside of attachments.

    The user of a sub-agent is its caller, a model: nothing is named there.
    """
    if state.parent_agent_id is not None:
        return frozenset()
    texts = [message.text[message.attached :] for message in state.messages if message.role == "user"]
    return frozenset().union(*map(named_places, texts))


def destinations(tool: ToolSpec, arguments: Mapping[str, Any]) -> frozenset[Place] | None:
    """Return the places to which a call sends data; None if its arguments do not tell.

    Args:
        tool: a tool with egress.
        arguments: the arguments of the call.
    """
    if isinstance(tool.egress, bool):
        return None
    properties = tool.parameters.get("properties", {})
    found: set[Place] = set()
    for name in tool.egress:
        # A parameter that is left out has the default of its schema; one without a default may lead anywhere.
        value = arguments.get(name, properties.get(name, {}).get("default", False))
        for address in value if isinstance(value, list | tuple) else () if value is None else [value]:
            places = places_of_address(address) if isinstance(address, str) else frozenset()
            if not places:
                return None
            found |= places
    return frozenset(found) or None


def show_places(places: Iterable[Place]) -> str:
    """Return places as people write them, with ports other than the ports of http and https."""
    shown = {host if port in DEFAULT_PORTS.values() else f"{host}:{port}" for host, port in places}
    return ", ".join(sorted(shown))


def _approved_servers(state: AgentState) -> tuple[str, ...]:
    """Return the servers to which calls of this execution may send data."""
    stored = state.extension(OWNER)
    if not isinstance(stored, JsonObject) or stored.get("execution") != state.execution_id:
        return ()
    return tuple(map(str, stored["servers"]))


# --- the interceptor ------------------------------------------------------------------------------------------------


@frozen
class EgressApproval(Interceptor, CanAcceptExecutionScope, CanForetellQuestions, CanNameTools):
    """Suspends calls by which data can leave, once the model has read a text that a stranger may have written.

    A text that a model reads can instruct the model to send away everything that it has seen, such as in the address of a page. So a
    call of a tool with `egress` waits for a decision unless a message of the user names the host of the call:

        loop = loop.with_interceptors(EgressApproval(servers=[Rule(ensemble="docs")]))

    Strangers may have written all results of tools, the findings of the provider's own tools, and attachments of messages. A program
    that calls tools counts as such a text. A sub-agent has read everything that its callers have read, and has their user. An address
    that cannot be read counts as not named. The `http` tools do not follow redirects to other hosts meanwhile: the model has to make
    a new call.

    It belongs inside of `RequireApproval`, so that one question is enough for a call with an effect.

    Attributes:
        servers: the calls whose data goes to one server for each ensemble, whatever the arguments, such as calls of an MCP server:
            names, patterns, predicates or `Rule`s. The first call in an execution waits; after an approval, the other calls of its
            ensemble run.
        unless: the calls that need no decision, in the same forms.
        from_start: whether a stranger has written something that the model reads from the beginning, such as its instructions.
        priority: the position among other interceptors.
    """

    servers: tuple[Rule, ...] = field(default=(), converter=as_rules)
    unless: tuple[Rule, ...] = field(default=(), converter=as_rules, kw_only=True)
    from_start: bool = field(default=False, validator=instance_of(bool), kw_only=True)
    priority: int = field(default=-950, kw_only=True)
    _callers: tuple[AgentState, ...] = field(default=(), repr=False, eq=False, kw_only=True)
    checks_calls = True
    writes = ("verdict", "call", f"state.extensions.{OWNER}")  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools that its rules name."""
        servers = references_in("EgressApproval(servers=…)", self.servers)
        return [*servers, *references_in("EgressApproval(unless=…)", self.unless)]

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that knows the conversations of the callers, if the agent serves a call."""
        return evolve(self, callers=scope.callers) if scope.callers else self

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return False for a tool without egress, and else None: it depends on the messages, and on the arguments of the call."""
        return None if tool.egress and cover(self.unless, tool, ensemble) is not True else False

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Suspend a call that would send data to a place that the user has not named."""
        if not point.tool.egress:
            return point
        is_server = await first_match(self.servers, point) is not None
        if point.decision is not None:
            is_approved = is_server and isinstance(point.decision, Approve | Edit)
            # This does not suspend the call again; it takes back all changes of outer interceptors since the decision.
            return (self._with_server(point) if is_approved else point).suspend()
        question = self._question_about_server(point) if is_server else self._question(point)
        if not question or await first_match(self.unless, point) is not None:
            return point
        return point.suspend(question)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Let redirects of the call lead to the places that were named or approved, and to no others."""
        if not point.tool.egress:
            return await proceed()
        own = destinations(point.tool, point.arguments) or frozenset()
        token = redirects_to.set(self._named(point.state) | own)
        try:
            return await proceed()
        finally:
            redirects_to.reset(token)

    def _question(self, point: BeforeToolUse) -> str:
        """Return why a call waits; empty if it does not."""
        if not self._has_read(point):
            return ""
        places = destinations(point.tool, point.arguments)
        unnamed = None if places is None else places - self._named(point.state)
        if unnamed == frozenset():
            return ""
        where = ", and its arguments do not tell where to" if unnamed is None else f" to {show_places(unnamed)}"
        unsaid = "" if unnamed is None else ", which no message of the user names"
        return f"data can leave by this call{where}{unsaid}; the model has read the text of others"

    def _question_about_server(self, point: BeforeToolUse) -> str:
        if point.ensemble in _approved_servers(point.state):
            return ""
        return f"data can leave by calls of the server {point.ensemble!r}; an approval is for all of them in this execution"

    def _with_server(self, point: BeforeToolUse) -> BeforeToolUse:
        known = _approved_servers(point.state)
        if point.ensemble in known:
            return point
        entry = {"execution": point.state.execution_id, "servers": [*known, point.ensemble]}
        return point.with_state(point.state.with_extension(OWNER, entry))

    def _has_read(self, point: BeforeToolUse) -> bool:
        """Return whether a stranger's text may have led to the call."""
        # A program decides about a call by the results of earlier calls.
        if self.from_start or outer_key(point.key):
            return True
        states = (point.state, *self._callers)
        # Without its callers, a sub-agent does not know the sources of its task.
        is_orphan = states[-1].parent_agent_id is not None
        return is_orphan or any(has_others_words(message) for state in states for message in state.messages)

    def _named(self, state: AgentState) -> frozenset[Place]:
        return places_named_by_user(self._callers[-1] if self._callers else state)
