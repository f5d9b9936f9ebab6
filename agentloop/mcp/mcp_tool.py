"""Tools that send their calls to a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.tool import (
    CanAccessToolContext,
    CanContinueCall,
    CanPinDefinition,
    ToolContext,
    ToolFromSpec,
    ToolPolicy,
)
from agentloop.errors import ToolUnavailable
from agentloop.mcp.connection import Connection
from agentloop.mcp.session import ProgressCallback, RequestStatus, ServerSession
from agentloop.values.authority import Declarations
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.tool_calls import Effect, ToolResult, ToolSpec

SessionRequest: TypeAlias = Callable[
    [ServerSession, Mapping[str, Any], ProgressCallback, RequestStatus], Awaitable[ToolResult]
]
"""Sends the arguments of a call to a session."""


_TASK = "mcp_task"
"""The name of the attachment that names the task which a call has become at its server."""


def _do_nothing() -> None:
    """Pin nothing: the tools that read resources and prompts are defined here."""


@frozen(eq=False)
class McpTool(ToolFromSpec, CanAccessToolContext, CanContinueCall, CanPinDefinition):
    """A tool whose calls are requests to a server.

    Attributes:
        spec: the name, description and parameters for the model.
        server: the name of the server.
        policy: the policy of calls.
        connection: returns the connection in the running event loop; None when there is none.
        request: sends the arguments of a call.
        accept: pins the definition of the tool.
        declarations: the statements about the tool.
    """

    spec: ToolSpec = field(repr=False)
    server: str
    policy: ToolPolicy = field(repr=False)
    connection: Callable[[], Connection | None] = field(repr=False)
    request: SessionRequest = field(repr=False)
    accept: Callable[[], None] = field(default=_do_nothing, repr=False)
    _context: ToolContext | None = field(default=None, repr=False)
    declarations: Declarations = field(factory=Declarations, repr=False, kw_only=True)

    @property
    def is_local(self) -> bool:
        """True: the connection to the server is in this process."""
        return True

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that reports the progress of this call, and records the task that it becomes."""
        return evolve(self, context=context)

    @property
    def continues_calls(self) -> bool:
        """Whether the call of the context became a task of the server before it was interrupted."""
        return bool(self._recorded_task())

    def accept_definition(self) -> None:
        """Offer the tool with its current definition as a known one from the next execution on."""
        self.accept()

    async def use(self, /, *_: Any, **arguments: Any) -> ToolResult:
        """Send a call to the server.

        Raises:
            ToolUnavailable: when the server cannot be reached, its ensemble is not held, or it offers another tool under
                this name by now.
            ToolInDoubt: when the connection was lost, or the server does not know the task of an interrupted call any more,
                and the call may have run.
            ToolFailed: when the tool fails or the server rejects the call.
        """
        # Looked up for each call: a restarted ensemble has a new connection.
        connection = self.connection()
        if connection is None:
            raise ToolUnavailable(
                f"the tool {self.name!r} cannot be used now: its server {self.server!r} was not started; pass the ensemble, "
                "not its tools, to an AgentLoop"
            )
        # A call that was interrupted is waited for: its task may have ended in the meantime.
        task = self._recorded_task()
        return await connection.send(partial(self._send, connection, arguments), self.name, self.effect, task)

    async def _send(
        self, connection: Connection, arguments: Mapping[str, Any], session: ServerSession, status: RequestStatus
    ) -> ToolResult:
        # Looked at when the session is there: a server may list other definitions after it was restarted. A task was begun
        # under the definition of its time.
        if self.spec.definition and not status.task and not connection.offers(self.spec.definition):
            raise ToolUnavailable(
                f"the MCP server {self.server!r} does not offer the tool {self.name!r} with this definition any more; its "
                "tools are listed anew when the next execution begins"
            )
        status.on_task = self._record_task
        return await self.request(session, arguments, self._report, status)

    def _recorded_task(self) -> str:
        """Return the id of the task that the call became before it was interrupted; empty when it became none."""
        log = None if self._context is None else self._context.scope.log
        if self._context is None or log is None:
            return ""
        recorded = log.attachment(self._context.idempotency_key, _TASK)
        # Another server would not know the task, or have another one under its id.
        return str(recorded["task"]) if recorded is not None and recorded["server"] == self.server else ""

    async def _record_task(self, task: str) -> None:
        """Record the task of the call, so that a process that recovers the call waits for it."""
        if self._context is not None and self._context.scope.log is not None:
            data = {"server": self.server, "task": task}
            await self._context.scope.log.record_attachment(self._context.idempotency_key, _TASK, data)

    def _report(self, update: Mapping[str, Any]) -> None:
        if self._context is not None:
            self._context.progress(update)


def tool_request(name: str) -> SessionRequest:
    """Return the request that calls a tool of the server, by its name there."""
    return lambda session, arguments, progress, status: session.call_tool(name, arguments, progress, status)


def _schema(properties: Mapping[str, Any], *required: str) -> JsonObject:
    return freeze_object({"type": "object", "properties": properties, "required": list(required)})


_CURSOR = {"cursor": {"type": "string", "description": "The cursor of the page, from the previous page."}}
# Models have no access to resources and prompts of the protocol, so these are offered as tools.
_READING_TOOLS: Mapping[str, tuple[str, JsonObject, SessionRequest]] = {
    "list_resources": (
        "List the resources that read_resource can read.",
        _schema(_CURSOR),
        lambda session, arguments, _, status: session.list_resources(arguments.get("cursor"), status),
    ),
    "read_resource": (
        "Read a resource.",
        _schema({"uri": {"type": "string", "description": "Its address, as listed."}}, "uri"),
        lambda session, arguments, _, status: session.read_resource(arguments["uri"], status),
    ),
    "list_prompts": (
        "List the prompts that get_prompt returns.",
        _schema(_CURSOR),
        lambda session, arguments, _, status: session.list_prompts(arguments.get("cursor"), status),
    ),
    "get_prompt": (
        "Return a prompt, filled in.",
        _schema(
            {
                "name": {"type": "string", "description": "Its name, as listed."},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "name",
        ),
        lambda session, arguments, _, status: session.get_prompt(
            arguments["name"], arguments.get("arguments", {}), status
        ),
    ),
}
RESOURCE_TOOLS = ("list_resources", "read_resource")
PROMPT_TOOLS = ("list_prompts", "get_prompt")


def reading_tool(name: str, prefix: str, **declared: Any) -> tuple[ToolSpec, SessionRequest]:
    """Return the spec and the request of a tool for resources or prompts.

    Args:
        name: one of `RESOURCE_TOOLS` and `PROMPT_TOOLS`.
        prefix: the prefix of its name for the model.
        **declared: the other attributes of the spec.
    """
    description, parameters, request = _READING_TOOLS[name]
    return ToolSpec(f"{prefix}{name}", description, parameters, Effect.PURE, **declared), request
