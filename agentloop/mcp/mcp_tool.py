"""Tools of a server, as tools of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.tool import CanAccessToolContext, Tool, ToolContext, ToolPolicy
from agentloop.errors import ToolUnavailable
from agentloop.mcp.link import Link
from agentloop.mcp.session import Sending, ServerSession
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.tool_calls import Effect, ToolResult, ToolSpec


@frozen(eq=False)
class McpTool(Tool, CanAccessToolContext):
    """A tool that a server runs.

    Attributes:
        spec: what a model sees.
        remote: its name at the server.
        server: the name of the server.
        policy: how it wants to be run.
        link: gives the connection in the running event loop; None when there is none.
    """

    spec: ToolSpec = field(repr=False)
    remote: str
    server: str
    policy: ToolPolicy = field(repr=False)
    link: Callable[[], Link | None] = field(repr=False)
    _context: ToolContext | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name by which a model calls it."""
        return self.spec.name

    @property
    def description(self) -> str:
        """What it does, as its server says."""
        return self.spec.description

    @property
    def parameters(self) -> JsonObject:
        """A JSON Schema of its arguments."""
        return self.spec.parameters

    @property
    def effect(self) -> Effect:
        """What calling it does to the world, as its server says."""
        return self.spec.effect

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that tells the progress of this call."""
        return evolve(self, context=context)

    async def use(self, /, *_: Any, **arguments: Any) -> ToolResult:
        """Let the server do it.

        Raises:
            ToolUnavailable: when the server is away, or its ensemble is not held.
            ToolInDoubt: when the server was lost meanwhile and may have done it.
            ToolFailed: when the tool or the server says so.
        """
        link = self.link()
        if link is None:
            raise ToolUnavailable(
                f"the tool {self.name!r} cannot be used now: its server {self.server!r} was not started; give the ensemble, "
                "not its tools, to an AgentLoop"
            )
        return await link.ask(lambda session, sending: self._asked(session, arguments, sending), self.name, self.effect)

    async def _asked(self, session: ServerSession, arguments: Mapping[str, Any], sending: Sending) -> ToolResult:
        return await session.call(self.remote, arguments, self._progress, sending)

    def _progress(self, told: Mapping[str, Any]) -> None:
        if self._context is not None:
            self._context.progress(told)


_Asking = Callable[[ServerSession, Mapping[str, Any], Sending], Awaitable[ToolResult]]
_CURSOR = {"cursor": {"type": "string", "description": "Where the next page begins, as the last one told."}}


def _schema(properties: Mapping[str, Any], *required: str) -> JsonObject:
    return freeze_object({"type": "object", "properties": properties, "required": list(required)})


class McpListTool(McpTool):
    """A tool that reads what a server has besides tools: resources and prompts."""

    async def _asked(self, session: ServerSession, arguments: Mapping[str, Any], sending: Sending) -> ToolResult:
        return await _ASKED[self.remote][2](session, arguments, sending)


_ASKED: Mapping[str, tuple[str, JsonObject, _Asking]] = {
    "list_resources": (
        "List what can be read with read_resource.",
        _schema(_CURSOR),
        lambda session, given, sending: session.resources(given.get("cursor"), sending),
    ),
    "read_resource": (
        "Read a resource.",
        _schema({"uri": {"type": "string", "description": "Its address, as listed."}}, "uri"),
        lambda session, given, sending: session.resource(given["uri"], sending),
    ),
    "list_prompts": (
        "List the prompts that get_prompt returns.",
        _schema(_CURSOR),
        lambda session, given, sending: session.prompts(given.get("cursor"), sending),
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
        lambda session, given, sending: session.prompt(given["name"], given.get("arguments", {}), sending),
    ),
}
RESOURCE_TOOLS = ("list_resources", "read_resource")
PROMPT_TOOLS = ("list_prompts", "get_prompt")


def reading_spec(name: str, shown: str) -> ToolSpec:
    """Return what a model sees of one of these tools.

    Args:
        name: which one.
        shown: the name by which a model calls it.
    """
    description, parameters, _ = _ASKED[name]
    return ToolSpec(shown, description, parameters, Effect.PURE)
