"""The loops of agents that files describe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack
from urllib.parse import urlsplit

from attrs import asdict, define, evolve, field, frozen

from agentloop import policies
from agentloop.agents.agent_file import (
    COMPILERS,
    OPTION_NAMES,
    AgentDescriptor,
    AgentReader,
    Variable,
    compiler_options,
    variable_problem,
)
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept, labels_of
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.tool import CanDiscoverTools, Tool, ToolGroup, ToolLike, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.errors import ConfigurationError, InvalidParameter, ToolDefinitionError
from agentloop.interception.rules import Permissions, RequireApproval, Rule
from agentloop.loop.agent_tool import AgentTool
from agentloop.loop.parameters import as_interceptors
from agentloop.loop.parts import FileGrants
from agentloop.mcp.ensemble import McpEnsemble
from agentloop.mcp.servers import HttpServer, Server, StdioServer, read_server
from agentloop.models.config import LLMConfig
from agentloop.models.http_inference import HttpInference
from agentloop.models.modes.react import ReActDriver
from agentloop.policies.budgets.budget import Budget
from agentloop.toolkits.descriptor import DescriptorReader
from agentloop.toolkits.ensemble import NO_GRANTS, Ensemble, EnsembleBuilder
from agentloop.toolkits.import_path import TOOL_SHORT_NAMES, AllowedModules, ImportPath, suggest_name
from agentloop.toolkits.source_files import LocatedValue, Mistake, raise_mistakes
from agentloop.toolkits.statements import FileStatements, Trust, TrustLike, chain_of, place_of
from agentloop.tools.decorator import collect_tools
from agentloop.values.authority import Statement, strictest
from agentloop.values.inference import DEFAULT_OPTIONS, InferenceOptions, OptionsLike, options_of
from agentloop.values.json import EMPTY_OBJECT, freeze_object
from agentloop.values.tool_calls import Effect

ANY_SERVER = "*"
"""The entry of `allow_servers` that allows every program and host."""


L = TypeVar("L")


@frozen
class AgentSources:
    """The file of an agent, and what the program allows it.

    Attributes:
        path: the file.
        allowed: the modules that import paths may name.
        allowed_servers: the programs and hosts that it may start and connect to.
        variables: the values of variables in system prompts; None when they are not known, as in a check.
        trust: the files whose statements count as the word of the program or of a person.
    """

    path: Path
    allowed: AllowedModules
    allowed_servers: frozenset[str]
    variables: Mapping[str, Variable] | None
    trust: Trust = field(factory=Trust)

    @classmethod
    def of(
        cls,
        path: str | PathLike[str],
        allow: Iterable[str] = (),
        allow_servers: Iterable[str] = (),
        variables: Mapping[str, Variable] | None = EMPTY_OBJECT,
        *,
        trust: TrustLike = False,
    ) -> AgentSources:
        """Check what a program passes.

        Raises:
            TypeError: a list is a single text, a variable is neither a text nor a number, or `trust` is neither a bool nor a list.
        """
        if isinstance(allow_servers, str):
            raise TypeError(f"allow_servers is a list of programs and hosts: write allow_servers=[{allow_servers!r}]")
        for name, value in (variables or {}).items():
            problem = variable_problem(name, value)
            if problem:
                raise TypeError(f"the variable {name!r} cannot be used: {problem}")
        return cls(Path(path), AllowedModules.of(allow), frozenset(allow_servers), variables, Trust.of(trust))

    def read(self) -> tuple[AgentDescriptor, frozenset[str]]:
        """Read the file, and those that it names. Nothing is imported.

        Returns:
            The descriptor, and the names of the variables that the program has to pass, where they are not known.

        Raises:
            InvalidDescriptor: with all mistakes.
        """
        reader = AgentReader(DescriptorReader(self.allowed), self.variables)
        agent = reader.read(self.path)
        raise_mistakes(reader.mistakes)
        return agent, frozenset(reader.needed)


def build_from_file(
    create_loop: Callable[..., Any],
    path: str | PathLike[str],
    parts: Mapping[str, Any],
    *,
    model: str | ModelConfig | CanInfer | None = None,
    **grants: Unpack[FileGrants],
) -> Any:
    """Return the loop of the agent that a file describes; `FileOptions` describes the parameters."""
    # A program that asks by labels itself has said about which calls: a second one would ask about the others.
    asks = "approve" in parts or bool(labels_of(as_interceptors(parts.get("interceptors", ()))))
    return build_agent(
        create_loop, AgentSources.of(path, **grants), model, parts, approve=None if asks else "untrusted"
    )


def build_agent(
    create_loop: Callable[..., L],
    sources: AgentSources,
    model: str | ModelConfig | CanInfer | None = None,
    parts: Mapping[str, Any] | None = None,
    *,
    guards: Sequence[CanIntercept] = (),
    needs_keys: bool = True,
    grants: Mapping[str, Any] = NO_GRANTS,
    approve: Literal["untrusted"] | None = None,
) -> L:
    """Build the loop of the agent that a file describes.

    Args:
        create_loop: the class of the loop.
        sources: the file, and what it may name.
        model: replaces the model of the file.
        parts: further parameters of the loop. Tools and interceptors are added to those of the file, and `options` replace those of
            the same name in its settings.
        guards: interceptors of the agent and of each of its sub-agents.
        needs_keys: whether the API keys of models have to be there; without them, the loop can be checked, not run.
        grants: what the person at the command line allows the ensembles of the file, as `EnsembleBuilder` has it.
        approve: which calls wait for a person if neither the file nor the program says so; None for those about which the guards ask.

    Raises:
        InvalidDescriptor: with all mistakes.
        TypeError: the model has another type.
    """
    if model is not None and not isinstance(model, str | LLMConfig | CanInfer):
        raise InvalidParameter(f"a model is a string, an LLMConfig or a CanInfer, not {type(model).__name__}")
    given = {} if parts is None else {**parts, "options": _given(parts.get("options", DEFAULT_OPTIONS))}
    descriptor, _ = sources.read()
    if approve is not None and "approve" not in descriptor.values:
        given["approve"] = approve  # its sub-agents get it from the loop that calls them
    builder = _AgentBuilder(create_loop, sources.allowed_servers, tuple(guards), needs_keys, sources.trust, grants)
    # The builder returns None only with a mistake.
    loop: L = builder.build(descriptor, model, given)
    raise_mistakes(builder.mistakes)
    return loop


@define
class _AgentBuilder:
    """Builds loops from descriptors, and collects the mistakes that show only when the tools are imported."""

    create_loop: Callable[..., Any]  # the class of loops imports this module, so its name is not known here
    allowed_servers: frozenset[str]
    guards: tuple[CanIntercept, ...]
    needs_keys: bool
    trust: Trust
    grants: Mapping[str, Any]
    mistakes: list[Mistake] = field(factory=list)
    _files: FileStatements = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._files = FileStatements(self.trust, self.mistakes)

    def build(self, agent: AgentDescriptor, model: str | LLMConfig | CanInfer | None, parts: dict[str, Any]) -> Any:
        """Return the loop of an agent; None after a mistake.

        Args:
            agent: its descriptor.
            model: the model that replaces its own, or that of its caller.
            parts: parameters of the loop that the program passes, and its `options` by name.
        """
        count, options = len(self.mistakes), parts.pop("options", {})
        inference, model_name = self._inference(agent, model)
        self._check_settings(agent)
        self._check_approval(agent)
        tools = [*self._tools(agent), *self._sub_agents(agent, inference), *_elements(parts.pop("tools", ()))]
        interceptors = [*self.guards, *self._interceptors(agent, model_name), *parts.pop("interceptors", ())]
        if len(self.mistakes) > count or inference is None:
            return None
        try:
            loop = self.create_loop(
                **{
                    "name": agent.name,
                    "driver": _driver(agent, inference, options),
                    "tools": tools,
                    "interceptors": interceptors,
                    "system_prompt": agent.system_prompt,
                    **_loop_options(agent),
                    **parts,
                }
            )
            self._check_patterns(agent, Tools.of(tools))
        except (ConfigurationError, ToolDefinitionError) as error:
            self.mistakes.append(agent.place.mistake(str(error)))
            return None
        return loop

    # --- the model ----------------------------------------------------------------------------------------------

    def _inference(
        self, agent: AgentDescriptor, model: str | LLMConfig | CanInfer | None
    ) -> tuple[CanInfer | None, str]:
        """Return the model, and its name for prices; None after a mistake."""
        if isinstance(model, CanInfer):
            return model, ""
        try:
            config = model if isinstance(model, LLMConfig) else self._config(agent, model)
        except ConfigurationError as error:
            self.mistakes.append(agent.mistake("model", str(error)))
            return None, ""
        if config is None:
            self.mistakes.append(agent.place.mistake("the agent has no model: add model = 'provider:model'"))
            return None, ""
        settings = {key: value for key, value in agent.value("settings", {}).items() if key not in OPTION_NAMES}
        return HttpInference(config.with_settings(**settings)), config.model

    def _config(self, agent: AgentDescriptor, model: str | None) -> LLMConfig | None:
        name, base_url = agent.value("model") if model is None else model, agent.value("base_url")
        if name is None:
            # The program may pass the model, and a sub-agent has that of its caller.
            return None if self.needs_keys else LLMConfig.parse("ollama:any", environment={})
        if base_url is not None:
            host = urlsplit(base_url).netloc
            if not self._is_allowed(host, urlsplit(base_url).hostname or ""):
                self.mistakes.append(agent.values["base_url"].mistake(_not_allowed("the host", host)))
        if self.needs_keys:
            return LLMConfig.parse(name, base_url=base_url)
        return LLMConfig.parse(name, base_url=base_url or "http://localhost", api_key="-")

    def _check_settings(self, agent: AgentDescriptor) -> None:
        """Note settings that would let the provider use its own tools, about which it asks nobody."""
        settings = agent.values.get("settings")
        if settings is None or self._files.may_loosen(settings):
            return
        hosted, extra = settings.at("hosted_tools"), settings.at("extra")
        if hosted.value:
            self._files.refuse(hosted, f"the provider would run {hosted.value!r} without a question", "set it in code")
        for key, value in (extra.value or {}).items():
            # Such as top_k. A text, a flag or a table may turn on anything that the provider has.
            if isinstance(value, bool) or not isinstance(value, int | float):
                self._files.refuse(extra, f"{key!r} may turn on tools of the provider", "set it in code", key)

    def _check_approval(self, agent: AgentDescriptor) -> None:
        """Note that nobody would be asked, as only a program or a person may say."""
        said = agent.values.get("approve")
        if said is not None and said.value == "none" and not self._files.may_loosen(said):
            problem = "its calls would run without a question, whatever the model has read"
            self._files.refuse(said, problem, "pass approve=None in code")

    # --- tools --------------------------------------------------------------------------------------------------

    def _tools(self, agent: AgentDescriptor) -> Iterator[Tool | ToolGroup]:
        tools = agent.values.get("tools")
        for index in range(0 if tools is None else len(tools.value)):
            yield from self._import_tools(agent.values["tools"].at(index))
        builder = EnsembleBuilder(Ensemble, self.trust, self.grants)
        for descriptor in agent.ensembles:
            ensemble = builder.build(descriptor)
            if ensemble.failure:
                # A program that starts without its tools would find out in the middle of a conversation.
                builder.mistakes.append(descriptor.place.mistake(f"the ensemble has failed: {ensemble.failure}"))
            yield ensemble
        self.mistakes.extend(builder.mistakes)
        servers = agent.values.get("mcp")
        for name in () if servers is None else servers.value:
            yield from self._server(str(name), agent.values["mcp"].at(name))

    def _import_tools(self, use: LocatedValue) -> list[Tool]:
        try:
            target = ImportPath.parse(use.value, TOOL_SHORT_NAMES).resolve()
        except ConfigurationError as error:
            self.mistakes.append(use.mistake(str(error)))
            return []
        tools = [target] if isinstance(target, Tool) else target
        if isinstance(tools, list | tuple | Tools) and all(isinstance(tool, Tool) for tool in tools):
            return list(tools)
        hint = "name it in ensembles" if isinstance(target, ToolGroup) else "tools are made by @tool"
        message = f"{use.value} is a {type(target).__name__}, not a tool or a list of tools; {hint}"
        self.mistakes.append(use.mistake(message))
        return []

    def _server(self, name: str, place: LocatedValue) -> Iterator[McpEnsemble]:
        table = dict(place.value)
        settings = {key: table.pop(key) for key in _SERVER_SETTINGS if key in table}
        try:
            if "timeout" in table:
                settings["policy"] = ToolPolicy(timeout=table.pop("timeout"))
            server = read_server(name, table)
            ensemble = McpEnsemble(name, server, **settings, statements=self._said_of_server(place))
        except (ConfigurationError, TypeError, ValueError) as error:
            self.mistakes.append(place.mistake(str(error.args[0] if error.args else error)))
            return
        if isinstance(server, StdioServer):
            key, kind, name, short = "command", "the program", server.command, server.command
            self.mistakes.extend(place.mistake(_ANOTHER_PROGRAM, *key) for key in _keys_that_choose_program(server))
        else:
            key, kind, name, short = "url", "the host", urlsplit(server.url).netloc, urlsplit(server.url).hostname or ""
        if not self._is_allowed(name, short):
            self.mistakes.append(place.mistake(_not_allowed(kind, name), key))
        # The authorization is requested at these, even in a private network.
        for field_name, host in _named_hosts(server):
            if not self._is_allowed(host, urlsplit(f"//{host}").hostname or ""):
                self.mistakes.append(place.mistake(_not_allowed("the host", host), "auth", field_name))
        allowed = Statement(key, short, self.trust.by, "allow_servers")
        yield evolve(ensemble, statements=[*ensemble.statements, allowed])

    def _said_of_server(self, place: LocatedValue) -> list[Statement]:
        """Return the statements of a file about the tools of a server; note the ones that are looser than the default."""
        said: list[Statement] = []
        for key in ("trust_annotations", "effects", "egress", "labels"):
            located = place.at(key)
            if located.value is None:
                continue
            by = self.trust.authority_of(located.file.path)
            said.append(Statement(key, located.value, by, place_of(located)))
            if not by.may_loosen and _loosens(key, located.value):
                problem = f"{key} would let calls of the server {place.path[-1]!r} run without a question"
                self._files.refuse(located, problem, "pass an McpEnsemble in code")
        return said

    def _is_allowed(self, *names: str) -> bool:
        return not self.allowed_servers.isdisjoint({ANY_SERVER, *names})

    def _sub_agents(self, agent: AgentDescriptor, inherited: CanInfer | None) -> Iterator[Tool]:
        for sub_agent in agent.agents:
            # A sub-agent without a model of its own has that of its caller.
            loop = self.build(sub_agent, None if "model" in sub_agent.values else inherited, {})
            if loop is None:
                continue
            options = {key: sub_agent.value(key) for key in _CALL_OPTIONS if key in sub_agent.values}
            try:
                tool = loop.as_tool(sub_agent.name, sub_agent.value("description"), **options)
                yield self._declared(tool, loop.tools, sub_agent.values.get("effect"))
            except (ConfigurationError, ToolDefinitionError) as error:
                self.mistakes.append(sub_agent.place.mistake(str(error)))

    def _declared(self, tool: AgentTool, tools: Tools, located: LocatedValue | None) -> AgentTool:
        """Return the tool of a sub-agent with the statements of files about its effect.

        It is as strict as the strictest of the agent's tools, or an effect where these are not known yet: the word of code about these
        tools is the word of code about the agent.
        """
        if located is None:
            return tool
        effects = [inner.declarations.holding("effect").value for inner in tools]
        unknown = any(isinstance(group, CanDiscoverTools) for group in tools.groups)
        said = tool.declarations.restated(
            effect=Effect.EFFECT if unknown else strictest("effect", [Effect.PURE, *effects])
        )
        return evolve(tool, declarations=self._files.declare(said, {"effect": chain_of(located)}))

    # --- interceptors -------------------------------------------------------------------------------------------

    def _interceptors(self, agent: AgentDescriptor, model_name: str) -> Iterator[CanIntercept]:
        permissions = agent.value("permissions", {})
        if "allow" in permissions or "deny" in permissions:
            allow = _rules(permissions["allow"]) if "allow" in permissions else None
            yield Permissions(allow, _rules(permissions.get("deny", [])))
        if "ask" in permissions:
            yield RequireApproval(_rules(permissions["ask"]))
        if "budget" in agent.values:
            yield Budget(**{"model": model_name, **agent.value("budget")})
        for name, account in agent.value("accounts", {}).items():
            yield policies.BudgetAccount(name, **{"model": model_name, **account})

    def _check_patterns(self, agent: AgentDescriptor, tools: Tools) -> None:
        """Note each name in the permissions that matches no tool, unless a server may have it."""
        permissions = agent.values.get("permissions")
        if permissions is None or any(isinstance(group, CanDiscoverTools) for group in tools.groups):
            return
        for key, rules in permissions.value.items():
            for index, rule in enumerate(rules):
                pattern = rule if isinstance(rule, str) else rule.get("tool", "*")
                if not isinstance(rule, str) and rule.get("optional"):
                    continue
                if not any(fnmatchcase(name, pattern) for name in tools.names) and pattern != "*":
                    message = f"the agent has no tool {pattern!r}{suggest_name(pattern, tools.names)}"
                    self.mistakes.append(permissions.mistake(message, key, index))


def _named_hosts(server: Server) -> Iterator[tuple[str, str]]:
    """Yield the hosts that an authorization names, each with its key."""
    if isinstance(server, HttpServer) and server.auth is not None:
        if server.auth.issuer:
            yield "issuer", urlsplit(server.auth.issuer).netloc
        yield from (("allow_private", host) for host in server.auth.allow_private)


def _loosens(key: str, value: Any) -> bool:
    """Return whether a statement about a server's tools is looser than the default: each is an effect, sends data, and is foreign."""
    if key == "trust_annotations":
        return bool(value)
    if key == "labels":
        return any(said for said in value.values())
    values = value.values() if isinstance(value, dict) else [value]
    return any(Effect(each) is not Effect.EFFECT if key == "effects" else each is not True for each in values)


_SERVER_SETTINGS = (
    "allow",
    "deny",
    "prefix",
    "trust_annotations",
    "effects",
    "egress",
    "labels",
    "optional",
    "resources",
    "prompts",
    "connect_timeout",
    "reconnect_timeout",
    "enabled",
    "required",
)
_ANOTHER_PROGRAM = "it would decide which program the command is, which is allowed as it is written: omit it, or write a whole path as command"
_CALL_OPTIONS = ("parameters", "effect", "max_depth", "budget_share")


def _elements(given: Tools | Iterable[ToolLike]) -> list[Tool | ToolGroup]:
    """Return the single tools and the groups among tools, so that groups stay groups."""
    tools = collect_tools(given)
    grouped = {tool.name for group in tools.groups for tool in group.offered}
    return [*[tool for tool in tools if tool.name not in grouped], *tools.groups]


def _keys_that_choose_program(server: StdioServer) -> list[tuple[str, ...]]:
    """Return the keys of a table that make another program of the command, which was allowed as it is written."""
    if os.sep not in server.command:
        return [("env", "PATH")] if "PATH" in server.env else []
    return [("cwd",)] if server.cwd is not None and not os.path.isabs(server.command) else []  # noqa: PTH117  # a text


def _not_allowed(kind: str, name: str) -> str:
    return f"{kind} {name!r} is not among those that the program allows; if it is to be used, add it to allow_servers"


def _rules(rules: Iterable[str | Mapping[str, Any]]) -> list[Rule]:
    return [Rule(tool=rule) if isinstance(rule, str) else Rule(**rule) for rule in rules]


def _given(options: OptionsLike) -> dict[str, Any]:
    """Return the options that a program has set, by name; the other ones are left to the file."""
    checked = options_of(options)
    if not isinstance(options, InferenceOptions):
        return {**options}
    return {
        name: value for name, value in asdict(checked, recurse=False).items() if value != getattr(DEFAULT_OPTIONS, name)
    }


def _driver(agent: AgentDescriptor, inference: CanInfer, given: Mapping[str, Any]) -> CanUseTools:
    settings = {key: value for key, value in agent.value("settings", {}).items() if key in OPTION_NAMES}
    options = InferenceOptions(**{**settings, **given})
    mode = agent.value("mode", "auto")
    if agent.value("driver", "tools") == "react":
        return ReActDriver(inference, options=options, output=mode)
    return ToolCallingDriver(inference, options=options, mode=mode)


def _loop_options(agent: AgentDescriptor) -> dict[str, Any]:
    """Return the parameters of a loop that the file sets and that need no more than their values."""
    options: dict[str, Any] = {}
    if "max_steps" in agent.values:
        options["max_steps"] = agent.value("max_steps")
    if "approve" in agent.values:
        options["approve"] = None if agent.value("approve") == "none" else agent.value("approve")
    if "output" in agent.values:
        options["output_type"] = freeze_object(agent.value("output"))
    compiler = agent.value("compiler")
    if compiler is not None:
        table = compiler if isinstance(compiler, dict) else {"use": compiler}
        options["compiler"] = COMPILERS[table["use"]][0](**compiler_options(table))
    return options
