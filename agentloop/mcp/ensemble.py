"""The tools of an MCP server as a group."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from attrs import evolve, field, frozen
from attrs.validators import ge, gt, min_len

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import CanDiscoverTools, Tool, ToolPolicy
from agentloop.errors import ConfigurationError
from agentloop.mcp.link import Link
from agentloop.mcp.mcp_tool import PROMPT_TOOLS, RESOURCE_TOOLS, McpListTool, McpTool, reading_spec
from agentloop.mcp.servers import HttpServer, Server, StdioServer
from agentloop.mcp.session import OfferedTool, Reply, SessionSettings
from agentloop.tools.ensembles.lifecycle import Lifecycle
from agentloop.values.tool_calls import Effect, ToolSpec

_POLICY = ToolPolicy(timeout=60.0)


def _as_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _as_effects(effects: Mapping[str, Effect | str]) -> Mapping[str, Effect]:
    return {name: Effect(effect) for name, effect in effects.items()}


@frozen(eq=False)
class McpEnsemble(CanDiscoverTools):
    """The tools of an MCP server; it stands in a list of tools like any group.

        files = McpEnsemble.stdio("npx", ["-y", "@modelcontextprotocol/server-filesystem", "."])
        async with AgentLoop.for_model("openai:gpt-5", tools=[files]) as loop:
            state = await loop.execute("What is in this folder?")

    The server is started, or connected with, when a loop is entered or an execution begins, and asked for its tools when
    an execution begins. One that is lost is started or connected with again; meanwhile its calls wait, and fail when that
    takes too long. Calls that had been sent are repeated where their tool is `pure` or `idempotent`, else they are in doubt.

    Attributes:
        name: the name of the ensemble, and of the server in logs and messages.
        server: where it is found.
        allow: the names of the tools to offer, as at the server; `*` stands for any characters.
        deny: those not to offer, of the ones that are allowed.
        prefix: stands before the names of its tools.
        effects: what tools do to the world, by their names at the server, where that is not what their annotations say. A
            server that is not trusted should be given `{"*": Effect.EFFECT}`.
        policy: how its tools want to be run; 60 seconds for a call when left out.
        resources: whether to offer two tools that list and read the server's resources.
        prompts: whether to offer two tools that list and fill in its prompts.
        on_elicitation: answers what the server wants to know of the user: takes the request in the protocol's JSON, returns
            the content of the answer, or None to decline. Declined when left out.
        on_sampling: answers what the server wants to ask a model: takes the request, returns the message. Declined when left
            out.
        connect_timeout: seconds until the server has answered and told its tools.
        patience: seconds that a call waits for a server that is away.
        max_message_bytes: the most bytes of a message of the server.
        enabled: whether it is started and offers anything.

    Raises:
        ConfigurationError: when the extra `mcp` is not installed.
    """

    name: str = field(validator=min_len(1))
    server: Server
    allow: tuple[str, ...] = field(default=("*",), converter=_as_patterns, kw_only=True)
    deny: tuple[str, ...] = field(default=(), converter=_as_patterns, kw_only=True)
    prefix: str = field(default="", kw_only=True)
    effects: Mapping[str, Effect] = field(factory=dict, converter=_as_effects, kw_only=True)
    policy: ToolPolicy = field(default=_POLICY, kw_only=True, repr=False)
    resources: bool = field(default=False, kw_only=True)
    prompts: bool = field(default=False, kw_only=True)
    on_elicitation: Reply | None = field(default=None, kw_only=True, repr=False)
    on_sampling: Reply | None = field(default=None, kw_only=True, repr=False)
    connect_timeout: float = field(default=30.0, validator=gt(0), kw_only=True)
    patience: float = field(default=10.0, validator=ge(0), kw_only=True)
    max_message_bytes: int = field(default=1 << 24, validator=ge(1024), kw_only=True)
    enabled: bool = field(default=True, kw_only=True)
    _links: WeakKeyDictionary[asyncio.AbstractEventLoop, Link] = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )
    _lifecycle: Lifecycle = field(factory=Lifecycle, init=False, repr=False)
    _known: dict[str, tuple[Tool, ...]] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.enabled and find_spec("mcp") is None:
            raise ConfigurationError("MCP needs the extra `mcp`: pip install 'agentloop[mcp]'")

    @classmethod
    def stdio(  # a command has these parts
        cls,
        command: str,
        args: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        *,
        name: str = "",
        **settings: Any,
    ) -> Self:
        """Describe a server that runs as a process of ours.

        Args:
            command: the program.
            args: its arguments.
            env: environment variables that it gets besides PATH, HOME and the like.
            cwd: the folder that it runs in; ours when left out.
            name: the name of the ensemble; that of the program when left out.
            **settings: any other attribute.
        """
        return cls(name or os.path.basename(command), StdioServer(command, args, env or {}, cwd), **settings)  # noqa: PTH119  # as text

    @classmethod
    def http(cls, url: str, headers: Mapping[str, str] | None = None, *, name: str = "", **settings: Any) -> Self:
        """Describe a server that is reached over streamable HTTP.

        Args:
            url: its address.
            headers: what is sent with each request, such as `Authorization`.
            name: the name of the ensemble; that of the host when left out.
            **settings: any other attribute.
        """
        host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        return cls(name or host, HttpServer(url, headers or {}), **settings)

    @classmethod
    def from_config(cls, path: str | os.PathLike[str], **settings: Any) -> list[Self]:
        """Read the usual JSON file with `mcpServers`; return an ensemble for each server that is not disabled.

        An entry has `command`, `args`, `env` and `cwd`, or `url` and `headers`; `${NAME}` and `${NAME:-default}` in them stand
        for environment variables of ours.

        Args:
            path: the file.
            **settings: any other attribute, for all of them.

        Raises:
            ConfigurationError: when it has mistakes; says where.
            OSError: when it cannot be read.
        """
        from agentloop.mcp.servers import servers_of

        return [cls(name, server, **settings) for name, server in servers_of(path).items()]

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that a model can call, as they were discovered last; none before the server was asked."""
        return self._known.get("tools", ())

    @property
    def interceptors(self) -> Sequence[CanIntercept]:
        """None: it does nothing besides its tools' calls."""
        return ()

    async def hold(self) -> None:
        """Begin to start the server or to connect with it; it is asked for its tools by `discover`."""
        if self.enabled:
            await self._lifecycle.hold(self.name, self._start)

    async def release(self) -> None:
        """Need it no more; ends it when nobody else holds it."""
        if self.enabled:
            await self._lifecycle.release(self.name, self._stop)

    async def discover(self) -> Sequence[Tool]:
        """Ask the server for its tools; return what it told last where it is away, which is logged."""
        link = self._link()
        if link is not None:
            self._known["tools"] = tuple(self._tools(await link.discovered()))
        return self.offered

    async def __aenter__(self) -> Self:
        """Hold it and discover its tools, for use without a loop."""
        await self.hold()
        try:
            await self.discover()
        except BaseException:
            await self.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.release()

    def disable(self) -> Self:
        """Return a copy that offers nothing and is not started."""
        return evolve(self, enabled=False)

    def diagnose(self) -> str:
        """Say why its calls would fail in the running event loop; empty when they would not."""
        if not self.enabled:
            return "it is disabled"
        link = self._link()
        return "it was not started" if link is None else link.diagnose()

    def _link(self) -> Link | None:
        return self._links.get(asyncio.get_running_loop())

    def _start(self) -> None:
        settings = SessionSettings(
            self.name, self.server, self.max_message_bytes, self.on_elicitation, self.on_sampling
        )
        link = self._links[asyncio.get_running_loop()] = Link(settings, self.connect_timeout, self.patience)
        link.start()

    async def _stop(self) -> None:
        link = self._links.pop(asyncio.get_running_loop(), None)
        if link is not None:
            await link.stop()

    def _tools(self, told: Sequence[OfferedTool]) -> Iterator[Tool]:
        for tool in told:
            if _fits(tool.name, self.allow) and not _fits(tool.name, self.deny):
                effect = next(
                    (e for pattern, e in self.effects.items() if fnmatchcase(tool.name, pattern)), tool.effect
                )
                spec = ToolSpec(f"{self.prefix}{tool.name}", tool.description, tool.parameters, effect)
                yield McpTool(spec, tool.name, self.name, self.policy, self._link)
        others = (RESOURCE_TOOLS if self.resources else ()) + (PROMPT_TOOLS if self.prompts else ())
        for name in others:
            yield McpListTool(reading_spec(name, f"{self.prefix}{name}"), name, self.name, self.policy, self._link)


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
