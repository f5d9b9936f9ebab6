"""The descriptors of agents in TOML and Markdown files, checked and with their places. Nothing is imported here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, evolve, field, fields, frozen

from agentloop import policies
from agentloop.compilers.clearing import ClearOldResults
from agentloop.compilers.history import ConversationWithCurrentToolTrace, WholeConversation
from agentloop.compilers.window import SlidingWindow, TokenWindow
from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.drivers.tool_calling import MODE_NAMES
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.loop.parameters import as_name
from agentloop.models.config import LLMConfig
from agentloop.policies.budgets.budget import Budget
from agentloop.toolkits.descriptor import LABELS, Descriptor, DescriptorReader, is_egress
from agentloop.toolkits.import_path import TOOL_SHORT_NAMES, ImportPath, suggest_name
from agentloop.toolkits.source_files import (
    Check,
    LocatedValue,
    Mistake,
    SourceFile,
    describe_type,
    has_type,
    json_problem,
    texts_problem,
)
from agentloop.tools.validation import SchemaValidator
from agentloop.values.bounds import current_bounds
from agentloop.values.inference import InferenceOptions
from agentloop.values.tool_calls import Effect

MAX_AGENTS = 64
"""The maximum number of agents that one file describes, with the files that it names."""

# --- checks of values -----------------------------------------------------------------------------------------------

_TEXT, _FLAG, _TABLE, _LIST = has_type(str), has_type(bool), has_type(dict), has_type(list)
_NUMBER, _COUNT = has_type(float, int), has_type(int)


def _one_of(*names: str) -> Check:
    def check(value: Any) -> str:
        return _TEXT(value) or ("" if value in names else f"{value!r} is unknown{suggest_name(value, names)}")

    return check


_IS_EFFECT = _one_of(*[effect.value for effect in Effect])


def _schema(value: Any) -> str:
    problem = json_problem(value)
    if problem:
        return problem
    try:
        SchemaValidator(value, "it")
    except ToolDefinitionError as error:
        return str(error)
    return ""


def _accepted_by(create: Callable[..., object], name: str, check: Check | None = None) -> Check:
    """Return a check of the type, and by the class that takes the value as this parameter."""

    def check_value(value: Any) -> str:
        problem = check(value) if check is not None else ""
        if problem:
            return problem
        try:
            create(**{name: value})
        except (TypeError, ValueError, ConfigurationError) as error:
            # Validators of attrs have more arguments than the message.
            return str(error.args[0] if error.args else error)
        return ""

    return check_value


_any_model = partial(LLMConfig.parse, "ollama:any", environment={})


def _is_model(value: Any) -> str:
    # The key and the address are those of the environment in which the agent runs.
    parse = partial(LLMConfig.parse, base_url="http://localhost", api_key="-")
    return _TEXT(value) or _accepted_by(parse, "text")(value)


# --- keys -----------------------------------------------------------------------------------------------------------

COMPILERS: Mapping[str, tuple[Callable[..., CanCompileMessages], Mapping[str, Check]]] = {
    "conversation": (WholeConversation, {}),
    "current_tool_trace": (ConversationWithCurrentToolTrace, {}),
    "sliding_window": (SlidingWindow, {"messages": _COUNT, "keep": _COUNT}),
    "token_window": (TokenWindow, {"tokens": _COUNT, "keep": _COUNT}),
    "clear_old_results": (ClearOldResults, {"above": _COUNT, "keep": _COUNT, "at_least": _COUNT}),
}
"""The compilers that a file can name, with their parameters."""

DRIVER_MODES: Mapping[str, tuple[str, ...]] = {"tools": MODE_NAMES, "react": ("auto", "json", "text")}
"""The modes of each driver that a file can name."""

_OPTIONS: Mapping[str, Check] = {
    item.name: _accepted_by(InferenceOptions, item.name, {"stop": texts_problem, "extra": _TABLE}.get(item.name))
    for item in fields(InferenceOptions)
    if item.name != "model"
}
SETTINGS: Mapping[str, Check] = {
    **_OPTIONS,
    **{name: _accepted_by(_any_model, name, _NUMBER) for name in ("timeout", "connect_timeout", "deadline")},
}
"""The keys of `settings`: sampling and limits of inferences, and times of requests."""

OPTION_NAMES = frozenset(_OPTIONS)
"""The keys of `settings` that are attributes of `InferenceOptions`; the others are those of `LLMConfig`."""

BUDGET: Mapping[str, Check] = {
    name: _accepted_by(Budget, name, check)
    for name, check in {
        "steps": _COUNT,
        "tool_calls": _COUNT,
        "tokens": _COUNT,
        "cost": _NUMBER,
        "seconds": _NUMBER,
        "wrap_up": _NUMBER,
        "strict": _FLAG,
        "unknown": _TEXT,
        "model": _TEXT,
        "max_output_tokens": _COUNT,
    }.items()
}
"""The keys of `budget`: attributes of `Budget`."""


def _any_account(**options: Any) -> object:
    return policies.BudgetAccount("account", **{"tokens": 0, **options})


ACCOUNT: Mapping[str, Check] = {
    name: _accepted_by(_any_account, name, check)
    for name, check in {
        "tokens": _COUNT,
        "cost": _NUMBER,
        "per": _TEXT,
        "zone": _TEXT,
        "by": _TEXT,
        "unknown": _TEXT,
        "model": _TEXT,
        "max_output_tokens": _COUNT,
        "hold_seconds": _NUMBER,
    }.items()
}
"""The keys of an account in `accounts`: attributes of `BudgetAccount`."""

PERMISSIONS: Mapping[str, Check] = {"allow": _LIST, "deny": _LIST, "ask": _LIST}
"""The keys of `permissions`."""

RULE: Mapping[str, Check] = {
    "tool": _TEXT,
    "ensemble": _TEXT,
    "effect": _IS_EFFECT,
    "egress": _FLAG,
    "reason": _TEXT,
    "optional": _FLAG,
}
"""The keys of a rule of `permissions`; a text is the name of a tool, or a pattern."""

MCP: Mapping[str, Check] = {
    "command": _TEXT,
    "args": texts_problem,
    "env": _TABLE,
    "cwd": _TEXT,
    "url": _TEXT,
    "headers": _TABLE,
    "auth": has_type(str, dict),
    "type": _TEXT,
    "allow": texts_problem,
    "deny": texts_problem,
    "prefix": _TEXT,
    "trust_annotations": _FLAG,
    "effects": _TABLE,
    "egress": has_type(bool, dict),
    "labels": _TABLE,
    "optional": _FLAG,
    "resources": _FLAG,
    "prompts": _FLAG,
    "timeout": _NUMBER,
    "connect_timeout": _NUMBER,
    "reconnect_timeout": _NUMBER,
    "enabled": _FLAG,
    "required": _FLAG,
}
"""The keys of a server in `mcp`."""

AGENT: Mapping[str, Check] = {
    "name": _accepted_by(as_name, "name", _TEXT),
    "description": _TEXT,
    "model": _is_model,
    "base_url": lambda value: _TEXT(value) or _accepted_by(_any_model, "base_url")(value),
    "settings": _TABLE,
    "system_prompt": _TEXT,
    "variables": _TABLE,
    "tools": texts_problem,
    "ensembles": has_type(list, dict),
    "mcp": _TABLE,
    "agents": has_type(list, dict),
    "permissions": _TABLE,
    "approve": _one_of("untrusted", "effects", "none"),
    "budget": _TABLE,
    "accounts": _TABLE,
    "max_steps": lambda value: _COUNT(value) or ("" if value > 0 else f"it has to be more than 0, not {value}"),
    "output": _schema,
    "driver": _one_of(*DRIVER_MODES),
    "mode": _TEXT,
    "compiler": has_type(str, dict),
}
"""The keys of an agent, in TOML and in front matter."""

CALL: Mapping[str, Check] = {
    "parameters": _schema,
    "effect": _IS_EFFECT,
    "max_depth": lambda value: _COUNT(value) or ("" if value > 0 else f"it has to be more than 0, not {value}"),
    "budget_share": lambda value: _NUMBER(value) or ("" if 0 <= value <= 1 else f"it is from 0 to 1, not {value}"),
}
"""The further keys of a sub-agent: how its caller calls it."""

SOURCED: Mapping[str, Check] = {"source": _TEXT, "description": _TEXT, **CALL}
"""The keys of a sub-agent that another file describes."""

# --- templates ------------------------------------------------------------------------------------------------------

# Every {{ is matched, so that one which names no variable is a mistake and not a part of the prompt.
_VARIABLE = re.compile(r"(\\?)\{\{(?:[ \t]{0,8}([A-Za-z_]\w{0,63})[ \t]{0,8}\}\})?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
Variable: TypeAlias = str | int | float | bool


def render_template(text: str, variables: Mapping[str, Variable]) -> tuple[str, set[str], list[tuple[int, str]]]:
    r"""Replace each `{{name}}` by the variable; `\{{` stands for the braces themselves.

    Args:
        text: the template.
        variables: the values by name; they are not templates themselves.

    Returns:
        The text, the names that it uses, and its first problems, each with the 0-based line of the template.
    """
    rendering = _Rendering(text, variables, current_bounds().document_bytes)
    rendered = _VARIABLE.sub(rendering.replace, text)
    return rendered, set(rendering.values), rendering.problems


@define
class _Rendering:
    """Replaces the variables of a template, and collects the first problems.

    Attributes:
        text: the template.
        variables: the values by name.
        limit: the number of characters up to which values may be repeated.
        values: the values of the variables that the template has, as texts.
        problems: the first problems, each with the 0-based line of the template.
    """

    text: str
    variables: Mapping[str, Variable]
    limit: float
    values: dict[str, str] = field(factory=dict)
    problems: list[tuple[int, str]] = field(factory=list)
    _repeated: int = 0

    def replace(self, match: re.Match[str]) -> str:
        escape, name = match.groups()
        if escape:
            return match[0].removeprefix("\\")
        if name in self.values:
            return self._repeat(match, self.values[name])
        if name in self.variables:
            value = self.variables[name]
            self.values[name] = str(value).lower() if isinstance(value, bool) else str(value)
            return self.values[name]
        # A template may have thousands of mistakes. For each one, lines are counted, and a similar name is searched for.
        if len(self.problems) < _MAX_PROBLEMS:
            self._add_problem(match, self._problem_of(name))
        return match[0]

    def _repeat(self, match: re.Match[str], value: str) -> str:
        """Return a value once more; values that many places repeat would make a long text of a short file."""
        was_within = self._repeated <= self.limit
        self._repeated += len(value)
        if self._repeated <= self.limit:
            return value
        if was_within:
            limit = f"{self.limit:,.0f} characters; the limit is Bounds.document_bytes"
            self._add_problem(match, f"the values of the variables are repeated for more than {limit}")
        return match[0]

    def _problem_of(self, name: str | None) -> str:
        if name is None:
            return r"{{ has to be followed by the name of a variable and }}; \{{ stands for itself"
        hint = suggest_name(name, self.variables) or "; pass it, or add it to the key 'variables'"
        return f"there is no variable {name!r}{hint}"

    def _add_problem(self, match: re.Match[str], problem: str) -> None:
        self.problems.append((self.text.count("\n", 0, match.start()), problem))


_MAX_PROBLEMS = 20

# --- descriptors ----------------------------------------------------------------------------------------------------


@frozen
class AgentDescriptor:
    """The description of one agent.

    Attributes:
        name: its name.
        place: its table.
        values: its values, by key.
        system_prompt: its instructions, with their variables replaced.
        ensembles: the descriptors of its ensembles.
        agents: the descriptors of its sub-agents.
    """

    name: str
    place: LocatedValue
    values: Mapping[str, LocatedValue]
    system_prompt: str
    ensembles: tuple[Descriptor, ...] = ()
    agents: tuple[AgentDescriptor, ...] = ()

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        located = self.values.get(key)
        return default if located is None else located.value

    def mistake(self, key: str, message: str) -> Mistake:
        """Return a mistake at a key of the agent, or at the agent where it has no such key."""
        return self.values[key].mistake(message) if key in self.values else self.place.mistake(message)


@define
class AgentReader:
    """Reads descriptors of agents, and collects all mistakes in them.

    Attributes:
        ensembles: reads the ensembles, opens files, and has the mistakes.
        variables: the variables that the program passes; None when they are not known, and then each variable may be one.
        needed: the variables that the program has to pass and did not.
    """

    ensembles: DescriptorReader
    variables: Mapping[str, Variable] | None
    needed: set[str] = field(factory=set)
    _used: set[str] = field(factory=set)
    _count: int = 0

    @property
    def mistakes(self) -> list[Mistake]:
        """The mistakes found so far."""
        return self.ensembles.mistakes

    def read(self, path: Path) -> AgentDescriptor:
        """Read the outermost file.

        Raises:
            InvalidDescriptor: when it cannot be read.
        """
        file = self.ensembles.read_file(path)
        agent = self._agent(LocatedValue(file.data, file, ()), path.stem, AGENT)
        # What the program passes and nobody uses is a misspelled name, or a prompt that lost its variable.
        for name in self.variables or ():
            if name not in self._used:
                message = f"no system prompt has the variable {name!r}, which the program passes"
                self.mistakes.append((str(path), "", 0, message))
        return agent

    def _agent(self, place: LocatedValue, name: str, checks: Mapping[str, Check]) -> AgentDescriptor:
        self._count += 1
        if self._count == MAX_AGENTS + 1:
            self.mistakes.append(place.mistake(f"there are more than {MAX_AGENTS} agents"))
        values = self._checked(place, checks)
        for key, inner_checks in _TABLES.items():
            if key in values:
                self._checked(values[key], inner_checks)
        if "base_url" in values and "model" not in values:
            self.mistakes.append(values["base_url"].mistake("it has no effect without a model: add model"))
        self._check_mode(values)
        self._check_compiler(values)
        self._check_rules(values)
        self._check_tools(values)
        for server in self._tables_of(values.get("mcp")):
            self._check_server(server)
        for account in self._tables_of(values.get("accounts")):
            if not self._checked(account, ACCOUNT).keys() & {"tokens", "cost"}:
                self.mistakes.append(account.mistake("an account limits something: add cost, in dollars, or tokens"))
        return AgentDescriptor(
            str(values["name"].value) if "name" in values else name,
            place,
            values,
            self._system_prompt(place, values),
            tuple(self._ensembles(values.get("ensembles"))),
            tuple(self._sub_agents(values.get("agents"))),
        )

    def _checked(self, place: LocatedValue, checks: Mapping[str, Check]) -> dict[str, LocatedValue]:
        """Return the valid values of a table, and note the mistakes of the others."""
        problem = _TABLE(place.value)
        if problem:
            self.mistakes.append(place.mistake(problem))
            return {}
        values = {}
        for key in place.value:
            located = place.at(key)
            unknown = f"there is no such key{suggest_name(key, checks)}" if key not in checks else ""
            problem = unknown or checks[key](located.value)
            if problem:
                self.mistakes.append(located.mistake(problem))
            else:
                values[key] = located
        return values

    def _tables_of(self, place: LocatedValue | None) -> Iterator[LocatedValue]:
        yield from [] if place is None else [place.at(key) for key in place.value]

    # --- parts of an agent --------------------------------------------------------------------------------------

    def _check_mode(self, values: Mapping[str, LocatedValue]) -> None:
        driver = values["driver"].value if "driver" in values else "tools"
        if "mode" in values:
            problem = _one_of(*DRIVER_MODES[driver])(values["mode"].value)
            if problem:
                self.mistakes.append(values["mode"].mistake(f"{problem} (driver {driver!r})"))

    def _check_compiler(self, values: Mapping[str, LocatedValue]) -> None:
        if "compiler" not in values:
            return
        place = values["compiler"]
        table = place if isinstance(place.value, dict) else evolve(place, value={"use": place.value})
        use = table.value.get("use", "")
        problem = _one_of(*COMPILERS)(use)
        if problem:
            self.mistakes.append(table.mistake(problem, "use"))
            return
        create, checks = COMPILERS[use]
        if len(self._checked(table, {"use": _TEXT, **checks})) == len(table.value):
            problem = _accepted_by(lambda options: create(**options), "options")(compiler_options(table.value))
            if problem:
                self.mistakes.append(table.mistake(problem))

    def _check_rules(self, values: Mapping[str, LocatedValue]) -> None:
        permissions = values.get("permissions")
        if permissions is None:
            return
        for key in PERMISSIONS:
            rules = permissions.value.get(key, [])
            for index, rule in enumerate(rules if isinstance(rules, list) else []):
                if not isinstance(rule, str):
                    self._checked(permissions.at(key, index), RULE)

    def _check_tools(self, values: Mapping[str, LocatedValue]) -> None:
        for index, text in enumerate(values["tools"].value if "tools" in values else ()):
            try:
                ImportPath.parse(text, TOOL_SHORT_NAMES).check(self.ensembles.allowed)
            except ConfigurationError as error:
                self.mistakes.append(values["tools"].mistake(str(error), index))

    def _check_server(self, server: LocatedValue) -> None:
        values = self._checked(server, MCP)
        for key, check in (("env", _TEXT), ("headers", _TEXT), ("effects", _IS_EFFECT), ("egress", is_egress)):
            place = values.get(key)
            for entry in self._tables_of(place) if place is not None and isinstance(place.value, dict) else ():
                problem = check(entry.value)
                if problem:
                    self.mistakes.append(entry.mistake(problem))
        for entry in self._tables_of(values.get("labels")):
            self._checked(entry, LABELS)
        if isinstance(server.value, dict) and ("command" in server.value) == ("url" in server.value):
            self.mistakes.append(server.mistake("a server has either a command or a url"))

    def _system_prompt(self, place: LocatedValue, values: Mapping[str, LocatedValue]) -> str:
        body = place.file.body if not place.path else None
        has_body = body is not None and bool(body.strip())
        located = values.get("system_prompt")
        if located is not None and has_body:
            self.mistakes.append(located.mistake("the text below the front matter is the system prompt; omit this one"))
        own = self._own_variables(values.get("variables"))
        text = body.strip() if body is not None and has_body else "" if located is None else located.value
        known = {**own, **(self.variables or {})}
        if self.variables is None:
            unknown = {name for escape, name in _VARIABLE.findall(text) if name and not escape and name not in known}
            self.needed |= unknown
            known.update(dict.fromkeys(unknown, ""))
        rendered, used, problems = render_template(text, known)
        self._used |= used
        for line, problem in problems:
            self.mistakes.append(_template_mistake(place, line, problem, located))
        for name in own:
            if name not in used:
                message = "the system prompt does not have this variable"
                self.mistakes.append(place.mistake(message, "variables", name))
        return rendered

    def _own_variables(self, place: LocatedValue | None) -> dict[str, Variable]:
        variables: dict[str, Variable] = {}
        for variable in self._tables_of(place):
            name = str(variable.path[-1])
            problem = variable_problem(name, variable.value)
            if problem:
                self.mistakes.append(variable.mistake(problem))
            else:
                variables[name] = variable.value
        return variables

    def _ensembles(self, place: LocatedValue | None) -> Iterator[Descriptor]:
        for item in self._tables_of(_as_list(place)):
            if isinstance(place and place.value, dict):
                yield self.ensembles.described(str(item.path[-1]), item)
            elif isinstance(item.value, str):
                yield from self.ensembles.referenced(item)
            else:
                self.mistakes.append(item.mistake(_TEXT(item.value)))

    def _sub_agents(self, place: LocatedValue | None) -> Iterator[AgentDescriptor]:
        for item in self._tables_of(_as_list(place)):
            if self._count > MAX_AGENTS:
                return
            if isinstance(place and place.value, dict):
                agent = self._sub_agent(item)
            elif isinstance(item.value, str):
                agent = self._sourced(item, {})
            else:
                self.mistakes.append(item.mistake(_TEXT(item.value)))
                continue
            if agent is not None:
                if not agent.value("description"):
                    message = (
                        "a sub-agent has a description, by which its caller knows when to call it: add description"
                    )
                    self.mistakes.append(agent.place.mistake(message))
                yield agent

    def _sub_agent(self, place: LocatedValue) -> AgentDescriptor | None:
        name = str(place.path[-1])
        if not isinstance(place.value, dict) or "source" not in place.value:
            return evolve(self._agent(place, name, {**AGENT, **CALL}), name=name)
        values = self._checked(place, SOURCED)
        source = values.pop("source", None)
        agent = None if source is None else self._sourced(source, values)
        return None if agent is None else evolve(agent, name=name)

    def _sourced(self, source: LocatedValue, values: Mapping[str, LocatedValue]) -> AgentDescriptor | None:
        with self.ensembles.open_source(source) as file:
            if file is None:
                return None
            agent = self._agent(LocatedValue(file.data, file, ()), Path(str(source.value)).stem, AGENT)
            return evolve(agent, values={**agent.values, **values})


_TABLES: Mapping[str, Mapping[str, Check]] = {"settings": SETTINGS, "budget": BUDGET, "permissions": PERMISSIONS}


def compiler_options(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a compiler in its table."""
    return {key: value for key, value in table.items() if key != "use"}


def variable_problem(name: object, value: object) -> str:
    """Return why a variable cannot be used in a template; empty if it can."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return f"the name of a variable has letters, digits and underscores, up to 64, unlike {name!r:.80}"
    return (
        "" if isinstance(value, str | int | float) else f"it has to be a text or a number, not {describe_type(value)}"
    )


def _as_list(place: LocatedValue | None) -> LocatedValue | None:
    """Return a list as a table by index, so that both forms are read alike."""
    if place is None or isinstance(place.value, dict):
        return place
    return evolve(place, value=dict(enumerate(place.value)))


def _template_mistake(place: LocatedValue, line: int, problem: str, located: LocatedValue | None) -> Mistake:
    if located is not None:
        return located.mistake(problem)
    file: SourceFile = place.file
    body = file.body or ""
    first_line = body[: len(body) - len(body.lstrip())].count("\n")
    return str(file.path), "", file.body_line + first_line + line, problem
