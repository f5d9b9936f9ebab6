"""The tools of an MCP server as a group."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from attrs import evolve, field, frozen
from attrs.validators import ge, gt, min_len
from attrs.validators import optional as none_or

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import CanDiscoverTools, Tool, ToolPolicy
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.errors.hints import install_hint, suggest
from agentloop.mcp.authorization import Authorization
from agentloop.mcp.away import AwayNotice
from agentloop.mcp.connection import Connection
from agentloop.mcp.mcp_tool import PROMPT_TOOLS, RESOURCE_TOOLS, McpTool, reading_tool, tool_request
from agentloop.mcp.servers import HttpServer, Server, ServerEntry, StdioServer, load_servers
from agentloop.mcp.session import RemoteTool, RequestHandler, SessionSettings
from agentloop.toolkits.lifecycle import Lifecycle
from agentloop.toolkits.statements import Trust, TrustLike
from agentloop.tools.validation import keep_validator
from agentloop.values.authority import Authority, Declarations, Statement
from agentloop.values.bounds import current_bounds
from agentloop.values.tool_calls import (
    ALL,
    Effect,
    Egress,
    EgressLike,
    NamesLike,
    ToolSpec,
    as_decides,
    as_egress,
    as_identifiers,
    as_own,
)
from agentloop.values.value import instance_of

T = TypeVar("T")

_POLICY = ToolPolicy(timeout=60.0)


def _as_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _as_egress(egress: EgressLike | Mapping[str, EgressLike]) -> Mapping[str, Egress]:
    by_name = egress if isinstance(egress, Mapping) else {"*": egress}
    return {name: as_egress(value) for name, value in by_name.items()}


_LABELS: Mapping[str, Callable[[NamesLike], tuple[str, ...]]] = {
    "own": as_own,
    "identifiers": as_identifiers,
    "decides": as_decides,
}


def _as_labels(labels: Mapping[str, Mapping[str, NamesLike]]) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    unknown = next((about for said in labels.values() for about in said if about not in _LABELS), None)
    if unknown is not None:
        raise ToolDefinitionError(
            f"labels of a tool are {', '.join(_LABELS)}, not {unknown!r}{suggest(unknown, _LABELS)}"
        )
    return {name: {about: _LABELS[about](names) for about, names in said.items()} for name, said in labels.items()}


def _as_effects(effects: Mapping[str, Effect | str]) -> Mapping[str, Effect]:
    return {name: Effect(effect) for name, effect in effects.items()}


@frozen(eq=False)
class McpEnsemble(CanDiscoverTools):
    """The tools of an MCP server; pass it to a loop like any group of tools.

        files = McpEnsemble.stdio("npx", ["-y", "@modelcontextprotocol/server-filesystem", "."])
        async with AgentLoop.for_model("openai:gpt-5", tools=[files]) as loop:
            state = await loop.execute("What is in this folder?")

    The server is started or connected to when a loop is entered or an execution begins, and its tools are listed when an
    execution begins. A lost server is started or connected to again; calls wait for it, and fail after `reconnect_timeout`.
    Calls that were sent before are repeated when their tool is `pure` or `idempotent`; others are in doubt.

    Attributes:
        name: the name of the ensemble, and of the server in logs and messages.
        server: the command or the address of the server.
        allow: the names of the tools to offer, as the server lists them; `*` matches any characters.
        deny: the names of tools not to offer, among the allowed ones.
        prefix: the prefix of the names for the model.
        trust_annotations: whether the server's annotations determine the effects of its tools: `readOnlyHint` is pure and
            `idempotentHint` is idempotent. Otherwise every tool is an effect, whatever the server says about it.
        effects: the effects of tools, by their names at the server; they win over annotations.
        egress: whether data can leave by calls of its tools. True for all, the default: a server may send what it gets to
            anywhere. False for a server that reaches nothing but this machine. Or by the names of tools, as in
            `{"fetch": "url", "*": False}`, with the arguments that carry addresses.
        labels: whose words are in the results and the arguments of tools, by their names at the server: `own`, `identifiers` and
            `decides` as in `@tool`, such as `{"search_mails": {"own": "id sender"}, "send_mail": {"decides": "to"}}`.
        optional: whether the names in `allow`, `deny`, `effects`, `egress` and `labels` may match no tool of the server. Otherwise that
            is an error when an execution begins.
        policy: the policy of calls; the default is a timeout of 60 seconds.
        resources: whether to offer two tools that list and read the server's resources.
        prompts: whether to offer two tools that list and fill in the server's prompts.
        on_elicitation: answers questions of the server to the user: takes the request in the protocol's JSON, and returns
            the content of the answer, or None to decline. None declines all of them.
        on_sampling: answers requests of the server to a model: takes the request, and returns the message. None declines
            all of them.
        connect_timeout: seconds until the server has answered and listed its tools.
        reconnect_timeout: seconds that a call waits for a lost server.
        max_message_bytes: maximum size of a message of the server, in bytes; None for `Bounds.message_bytes` of the loop.
        enabled: whether it is started and offers its tools.
        required: whether an execution needs it. If so, one whose server does not start fails before its first request. Otherwise the
            execution goes on without its tools; the model is told, and listeners get `ToolsUnavailable` before each request.
        statements: statements about the ensemble; one about `trust_annotations`, `effects`, `egress` or `labels` names the speaker of
            the attribute, which is code otherwise.

    Raises:
        ConfigurationError: when the extra `mcp` is not installed.
        ToolDefinitionError: when `egress` or `labels` has another form.
    """

    name: str = field(validator=min_len(1))
    server: Server
    allow: tuple[str, ...] = field(default=("*",), converter=_as_patterns, kw_only=True)
    deny: tuple[str, ...] = field(default=(), converter=_as_patterns, kw_only=True)
    prefix: str = field(default="", kw_only=True)
    trust_annotations: bool = field(default=False, validator=instance_of(bool), kw_only=True)
    effects: Mapping[str, Effect] = field(factory=dict, converter=_as_effects, kw_only=True)
    egress: Mapping[str, Egress] = field(default=True, converter=_as_egress, kw_only=True)
    labels: Mapping[str, Mapping[str, tuple[str, ...]]] = field(factory=dict, converter=_as_labels, kw_only=True)
    optional: bool = field(default=False, validator=instance_of(bool), kw_only=True)
    policy: ToolPolicy = field(default=_POLICY, kw_only=True, repr=False)
    resources: bool = field(default=False, kw_only=True)
    prompts: bool = field(default=False, kw_only=True)
    on_elicitation: RequestHandler | None = field(default=None, kw_only=True, repr=False)
    on_sampling: RequestHandler | None = field(default=None, kw_only=True, repr=False)
    connect_timeout: float = field(default=30.0, validator=gt(0), kw_only=True)
    reconnect_timeout: float = field(default=10.0, validator=ge(0), kw_only=True)
    max_message_bytes: int | None = field(default=None, validator=none_or(ge(1024)), kw_only=True)
    enabled: bool = field(default=True, kw_only=True)
    required: bool = field(default=True, validator=instance_of(bool), kw_only=True)
    statements: tuple[Statement, ...] = field(default=(), converter=tuple[Statement, ...], kw_only=True, repr=False)
    # Connections belong to the event loop of their tasks; the tools of the last discovery are for all of them.
    _connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = field(
        factory=WeakKeyDictionary, init=False, repr=False
    )
    _lifecycle: Lifecycle = field(factory=Lifecycle, init=False, repr=False)
    _discovered: dict[str, tuple[Tool, ...]] = field(factory=dict, init=False, repr=False)
    # The names of all tools of the server, as of the last discovery; empty until a server has listed some.
    _listed: list[str] = field(factory=list, init=False, repr=False)
    # The definitions that were first listed or last approved, by the names of the tools.
    _pinned: dict[str, str] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        # Raised here and not at the first connection, which only logs its errors.
        if self.enabled and find_spec("mcp") is None:
            raise ConfigurationError(f"MCP needs the extra `mcp`: {install_hint('mcp')}")

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        *,
        name: str = "",
        **settings: Any,
    ) -> Self:
        """Create the ensemble of a server that runs as a subprocess.

        Args:
            command: the program.
            args: its arguments.
            env: its environment variables, in addition to PATH, HOME and the like.
            cwd: its working folder; ours when left out.
            name: the name of the ensemble; that of the program when left out.
            **settings: any other attribute.

        Raises:
            ConfigurationError: when the command is empty.
        """
        return cls(name or os.path.basename(command), StdioServer(command, args, env or {}, cwd), **settings)  # noqa: PTH119  # as text

    @classmethod
    def http(
        cls,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        auth: Authorization | None = None,
        name: str = "",
        **settings: Any,
    ) -> Self:
        """Create the ensemble of a server over streamable HTTP.

        Args:
            url: its address.
            headers: headers of each request, such as `Authorization`.
            auth: how the program is authorized: `OAuth()`, `ClientCredentials(…)` or `SignedCredentials(…)`.
            name: the name of the ensemble; that of the host when left out.
            **settings: any other attribute.

        Raises:
            ConfigurationError: when the address is not a valid URL, or there are two authorizations.
        """
        # Without the user and the password, which the name would show in logs.
        host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        return cls(name or host, HttpServer(url, headers or {}, auth=auth), **settings)

    @classmethod
    def from_config(cls, path: str | os.PathLike[str], *, trust: TrustLike = False, **settings: Any) -> list[Self]:
        """Read the usual JSON file with `mcpServers`; return an ensemble for each server that is not disabled.

        An entry has `command`, `args`, `env` and `cwd`, or `url`, `headers` and `auth`; `${NAME}` and `${NAME:-default}` in them are
        replaced by environment variables. `"trustAnnotations": true` in an entry of a trusted file sets `trust_annotations` of its
        ensemble, and `"required": false` in any file sets `required`.

        Args:
            path: the file.
            trust: whether the statements of the file count as the program's own word.
            **settings: any other attribute, for all of them.

        Raises:
            ConfigurationError: when it has mistakes, or trusts annotations and is not trusted itself; names the place.
            OSError: when it cannot be read.
        """
        return [
            cls(entry.name, entry.server, **cls._settings(entry, path, Trust.of(trust), settings))
            for entry in load_servers(path)
        ]

    @staticmethod
    def _settings(
        entry: ServerEntry, path: str | os.PathLike[str], trust: Trust, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the attributes of the ensemble of an entry: from code, and from a trusted file."""
        settings = {"required": entry.required, **settings}
        if not entry.trust_annotations or "trust_annotations" in settings:
            return settings
        place = f"{os.fspath(path)}: mcpServers.{entry.name}.trustAnnotations"
        if not trust.covers(Path(path)):
            raise ConfigurationError(
                f"{place}: a file cannot decide that the server's word on its own tools counts. If that is meant, pass "
                f"trust_annotations=True in code, or trust the file (`trust` where a program loads it, --trust {os.fspath(path)} on "
                "the command line)"
            )
        said = Statement("trust_annotations", value=True, by=trust.by, place=place)
        return {**settings, "trust_annotations": True, "statements": [*settings.get("statements", ()), said]}

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that a model can call, as of the last `discover`; empty before the first."""
        return self._discovered.get("tools", ())

    @property
    def interceptors(self) -> Sequence[CanIntercept]:
        """The one that tells the model what is away; none for a server that is required."""
        return () if self.required or not self.enabled else (AwayNotice(self.name, self._reason_away),)

    async def hold(self) -> None:
        """Begin to start the server or to connect to it; `discover` waits for it."""
        if self.enabled:
            await self._lifecycle.hold(self.name, self._start)

    async def release(self) -> None:
        """Stop the server, or disconnect from it, when nothing else holds it."""
        if self.enabled:
            await self._lifecycle.release(self.name, self._stop)

    async def discover(self) -> Sequence[Tool]:
        """List the tools of the server; the last known ones when the connection to it is lost, which is logged.

        Raises:
            ConfigurationError: when it is required and does not start.
        """
        connection = self._connection()
        if connection is not None:
            tools = await connection.discover()
            self._listed[:] = [tool.name for tool in tools]
            self._discovered["tools"] = tuple(self._select(tools))
            if self.required and not connection.has_started:
                raise ConfigurationError(
                    f"the MCP server {self.name!r} did not start: {connection.diagnose()}; mend its command or address, or set "
                    "required to false to go on without its tools"
                )
        return self.offered

    @property
    def call_policy(self) -> ToolPolicy:
        """The policy of all of its tools."""
        return self.policy

    @property
    def name_problems(self) -> Sequence[str]:
        """The names in `allow`, `deny`, `effects`, `egress` and `labels` that no tool of the server has, as of the last `discover`."""
        listed = self._listed
        if self.optional or not listed:  # a server that cannot be reached has listed nothing
            return ()
        named = {name: getattr(self, name) for name in ("allow", "deny", "effects", "egress", "labels")}
        readers = self._readers  # tools of the ensemble, which `egress` and `labels` are for, too
        return [
            f"the server has no tool {pattern!r} for {setting}=…{suggest(pattern, listed)}; if it may be missing, say optional=True"
            for setting, patterns in named.items()
            for pattern in patterns
            if pattern != "*"
            and not any(fnmatchcase(name, pattern) for name in (*listed, *(readers if setting in _FOR_READERS else ())))
        ]

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
        """Return why its calls would fail in the running event loop; empty when they would not."""
        if not self.enabled:
            return "it is disabled"
        connection = self._connection()
        return "it was not started" if connection is None else connection.diagnose()

    def _reason_away(self) -> str:
        connection = self._connection()
        return "" if connection is None else connection.diagnose()

    def _connection(self) -> Connection | None:
        return self._connections.get(asyncio.get_running_loop())

    def _start(self) -> None:
        bounds = current_bounds()
        max_message_bytes = self.max_message_bytes or bounds.message_bytes
        settings = SessionSettings(self.name, self.server, max_message_bytes, self.on_elicitation, self.on_sampling)
        connection = Connection(settings, self.connect_timeout, self.reconnect_timeout, bounds)
        self._connections[asyncio.get_running_loop()] = connection
        connection.start()

    async def _stop(self) -> None:
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.stop()

    @property
    def possible_effects(self) -> frozenset[Effect]:
        """The effects that its tools may have, whatever it will list."""
        if not self.enabled:
            return frozenset()
        known = frozenset({Effect.EFFECT, *self.effects.values()})
        reading = frozenset({Effect.PURE}) if self.resources or self.prompts else frozenset[Effect]()
        return frozenset(Effect) if self.trust_annotations else known | reading

    def _select(self, tools: Sequence[RemoteTool]) -> Iterator[Tool]:
        """Yield the tools to offer."""
        for tool in tools:
            if _matches(tool.name, self.allow) and not _matches(tool.name, self.deny):
                said = self._declare(tool)
                pinned = self._pinned.setdefault(tool.name, tool.definition)
                spec = ToolSpec(
                    f"{self.prefix}{tool.name}",
                    tool.description,
                    tool.parameters,
                    said.holding("effect").value,
                    definition=tool.definition,
                    pinned=pinned,
                    **_data_of(said),
                )
                if tool.validator is not None:
                    keep_validator(spec, tool.validator)
                accept = partial(self._pinned.__setitem__, tool.name, tool.definition)
                request = tool_request(tool.name)
                yield McpTool(spec, self.name, self.policy, self._connection, request, accept, declarations=said)
        for name in self._readers:
            said = self._of_code(Effect.PURE, name)
            spec, request = reading_tool(name, self.prefix, **_data_of(said))
            yield McpTool(spec, self.name, self.policy, self._connection, request, declarations=said)

    @property
    def _readers(self) -> tuple[str, ...]:
        return (RESOURCE_TOOLS if self.resources else ()) + (PROMPT_TOOLS if self.prompts else ())

    def _declare(self, tool: RemoteTool) -> Declarations:
        """Return the statements about a tool; the annotations of the server are noted, and count where somebody trusts them."""
        said = self._of_code(Effect.EFFECT, tool.name)
        said = said.plus(Statement("annotations", tool.effect, Authority.SERVER, self.name))
        # The first pattern that matches wins, as in the order of the program.
        effect = _first_match(tool.name, self.effects, default=None)
        if effect is not None:
            return self._state(said, "effect", effect, "effects")
        if not self.trust_annotations:
            return said
        said = self._state(said, "effect", tool.effect, "trust_annotations")
        return self._state(said, "trust_annotations", True, "trust_annotations")  # noqa: FBT003  # the value of a statement

    def _of_code(self, effect: Effect, name: str) -> Declarations:
        policy = self.policy
        said = Declarations.of_code(
            effect=effect,
            egress=True,
            own=(),
            identifiers=(),
            decides=ALL,
            runs_code=policy.runs_code,
            strict=policy.strict,
            sequential=policy.sequential,
            eager=policy.eager,
        )
        for about, names in _first_match(name, self.labels, default=_NO_LABELS).items():
            said = self._state(said, about, names, "labels")
        return self._state(said, "egress", _first_match(name, self.egress, default=True), "egress")

    def _state(self, said: Declarations, about: str, value: object, attribute: str) -> Declarations:
        """Add the statement of an attribute, by the speaker that has set the attribute."""
        word = next((word for word in self.statements if word.about == attribute), None)
        by, place = (Authority.CODE, "") if word is None else (word.by, word.place)
        statement = Statement(about, value, by, place)
        return said.replaced_by(statement) if by.may_loosen else said.plus(statement)


_FOR_READERS = frozenset({"egress", "labels"})
_NO_LABELS: Mapping[str, tuple[str, ...]] = {}


def _data_of(said: Declarations) -> dict[str, Any]:
    """Return what holds about the data of the calls of a tool, as `ToolSpec` has it."""
    return {about: said.holding(about).value for about in ("egress", *_LABELS)}


def _first_match(name: str, by_pattern: Mapping[str, T], *, default: T) -> T:
    return next((value for pattern, value in by_pattern.items() if fnmatchcase(name, pattern)), default)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
