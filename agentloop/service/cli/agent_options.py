"""The options that describe an agent, its driver, its limits and its approvals, and the loop that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from math import inf
from pathlib import Path
from typing import Any

import click
from attrs import evolve, frozen

from agentloop.agents.agent_builder import AgentSources, build_agent
from agentloop.agents.agent_file import DRIVER_MODES
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tools import Tools
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rules import RequireApproval, Rule
from agentloop.interception.untrusted import AskUntrusted
from agentloop.loop.agent_loop import AgentLoop, Input
from agentloop.loop.agent_tool import AgentTool
from agentloop.loop.dependencies import check_dependencies
from agentloop.loop.unasked import format_unasked, unasked_tools
from agentloop.mcp.ensemble import McpEnsemble
from agentloop.models.config import LLMConfig
from agentloop.models.http_inference import HttpInference
from agentloop.models.modes.react import ReActDriver
from agentloop.models.presets import PRESETS
from agentloop.policies.budgets.budget import Budget, TimeLimit
from agentloop.policies.budgets.prices import published_prices
from agentloop.policies.egress import EgressApproval
from agentloop.policies.grants import AskUnlessGranted
from agentloop.service.cli import demo
from agentloop.service.cli.attachments import compose_message, read_attachments, read_piped_text, read_stdin
from agentloop.service.cli.configuration import (
    DEMO_MODEL,
    MODEL_VARIABLE,
    configured_option,
    is_given,
    load_configuration,
    save_setting,
)
from agentloop.service.cli.console import as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors, require_text
from agentloop.service.cli.execution import (
    Decider,
    SessionGrants,
    TerminalApprover,
    UngrantedApproval,
    approve_call,
    can_prompt,
    deny_call,
    leave_pending,
)
from agentloop.service.cli.inventory import FC, load_servers, mcp_option, trust_of, trust_option
from agentloop.service.cli.principals import principal_option
from agentloop.service.cli.sources import (
    dependencies_option,
    file_of,
    load_dependencies,
    load_loop,
    load_tools,
    names_loop,
)
from agentloop.toolkits.import_path import AllowedModules
from agentloop.toolkits.statements import Trust
from agentloop.values.capabilities import CapabilityRow
from agentloop.values.run_requests import Identity
from agentloop.values.secrets import Secret
from agentloop.values.tool_calls import Effect

# --- the driver -----------------------------------------------------------------------------------------------------

MODES: Mapping[str, Sequence[str]] = DRIVER_MODES
"""The modes of each driver."""
_ALL_MODES = tuple(dict.fromkeys(mode for modes in MODES.values() for mode in modes))


@frozen
class DriverOptions:
    """The driver that a command line chooses.

    Attributes:
        name: `tools` or `react`.
        mode: how the model is offered tools and writes its calls.
        streaming: whether responses are streamed.

    Raises:
        InvalidUsage: the driver has no such mode.
    """

    name: str = "tools"
    mode: str = "auto"
    streaming: bool = False

    def __attrs_post_init__(self) -> None:
        """Reject a mode of another driver."""
        modes = MODES[self.name]
        if self.mode not in modes:
            others = [f"--driver {name}" for name, modes in MODES.items() if self.mode in modes]
            raise InvalidUsage(
                f"--driver {self.name} has no mode {self.mode!r}, only {', '.join(modes)}; {self.mode!r} is a mode of "
                f"{' and '.join(others)}"
            )

    def build(self, inference: CanInfer, capabilities: Sequence[CapabilityRow] = ()) -> InferringDriver:
        """Build the driver.

        Args:
            inference: the model.
            capabilities: capability rows that precede the published ones.
        """
        if self.name == "react":
            return ReActDriver(inference, streaming=self.streaming, output=self.mode, models=capabilities)  # type: ignore[arg-type]  # checked against MODES
        return ToolCallingDriver(inference, streaming=self.streaming, mode=self.mode, models=capabilities)  # type: ignore[arg-type]  # checked against MODES


def driver_options(command: Callable[..., None], *, streams: bool = False) -> Callable[..., None]:
    """Add the options `--driver`, `--mode` and `--stream` to a command, which receives them as its argument `driver`.

    Args:
        command: the command.
        streams: whether the command always streams, so that it has no option `--stream`.
    """

    @wraps(command)
    def with_driver(*arguments: Any, driver_name: str, mode: str, stream: bool = False, **options: Any) -> None:
        command(*arguments, driver=DriverOptions(driver_name, mode, stream), **options)

    modes = " ".join(f"With --driver {name}: {', '.join(modes)}." for name, modes in MODES.items())
    # Decorators apply from the bottom up: the last option here is the first one in the help.
    stream = configured_option(
        "--stream/--no-stream", default=False, help="Show the model's text while it is generated."
    )
    for option in (
        *([] if streams else [stream]),
        click.option(
            "--mode",
            type=click.Choice(_ALL_MODES),
            default="auto",
            show_default=True,
            help=f"How the model is offered tools and writes its calls; auto picks what the model supports. {modes}",
        ),
        click.option(
            "--driver",
            "driver_name",
            type=click.Choice(list(MODES)),
            default="tools",
            show_default=True,
            help="tools: the model calls tools until it answers. react: the model writes a thought before each action.",
        ),
    ):
        option(with_driver)
    return with_driver


# --- limits ---------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunLimits:
    """The limits of an execution.

    Attributes:
        max_steps: the maximum number of steps; None for that of the loop.
        timeout: the maximum time, in seconds; None for no limit.
        max_tokens: the maximum number of tokens, input and output; None for no limit.
        max_cost: the maximum cost, in dollars; None for no limit.
    """

    max_steps: int | None = None
    timeout: float | None = None
    max_tokens: int | None = None
    max_cost: float | None = None

    def with_cost_asked(self, subject: Subject) -> RunLimits:
        """Return limits with a maximum cost, for which a person at a terminal is asked before the first request that costs money.

        The answer is kept in the configuration. A model that needs no key, or whose price is not published, asks for nothing.

        Args:
            subject: what is executed.

        Raises:
            InvalidUsage: the configuration cannot be written.
        """
        asks = self.max_cost is None and can_prompt() and load_configuration().values.get("ask_cost", True)
        if not asks or not _costs_money(subject):
            return self
        answer = click.prompt(_COST_QUESTION, default="1.00", value_proc=_parse_cost, err=True)
        key, value = ("ask_cost", False) if answer is None else ("max_cost", answer)
        click.echo(f"{key} is set in {save_setting(key, value)}; --max-cost replaces it", err=True)
        return evolve(self, max_cost=answer)

    def apply(self, loop: AgentLoop, model: str) -> AgentLoop:
        """Return a loop with these limits in addition to its own.

        Args:
            loop: the loop.
            model: the name of the model, whose price the cost is computed from.

        Raises:
            InvalidUsage: the timeout is not a positive number.
            ConfigurationError: prices are needed and not installed.
        """
        limited = loop.with_interceptors(*self.interceptors(model))
        return limited if self.max_steps is None else limited.replace(max_steps=self.max_steps)

    def interceptors(self, model: str) -> list[Interceptor]:
        """Return interceptors that enforce all limits except that of steps.

        Args:
            model: the name of the model, whose price the cost is computed from.

        Raises:
            InvalidUsage: the timeout is not a positive number.
            ConfigurationError: prices are needed and not installed.
        """
        interceptors: list[Interceptor] = []
        if self.timeout is not None:
            interceptors.append(TimeLimit(_check_number(self.timeout, "--timeout must be a number of seconds")))
        if self.max_tokens is not None or self.max_cost is not None:
            if self.max_cost is not None:
                _check_number(self.max_cost, "--max-cost must be a number of dollars")
            interceptors.append(Budget(tokens=self.max_tokens, cost=self.max_cost, model=model))
        return interceptors


_COST_QUESTION = "How many dollars may a run, or a turn of the chat, cost at most? A number, or none for no limit"


def _parse_cost(text: str) -> float | None:
    if text.strip().lower() == "none":
        return None
    try:
        cost = float(text.strip().removeprefix("$"))
    except ValueError:
        cost = 0.0
    if not 0 < cost < inf:
        raise click.UsageError(f"write a number of dollars above 0, such as 2.50, or none, not {text!r:.80}")
    return cost


def _costs_money(subject: Subject) -> bool:
    prices = published_prices()
    if prices is None or subject.provider not in PRESETS or not PRESETS[subject.provider].needs_key:
        return False
    return prices.price(subject.model_name) is not None


def _check_number(value: float, rule: str) -> float:
    # click has no range that excludes NaN and infinity.
    if not 0 < value < inf:
        raise InvalidUsage(f"{rule} above 0, not {value:g}")
    return value


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add options for limits to a command, which receives them as its argument `limits`."""

    @wraps(command)
    def with_limits(
        *arguments: Any,
        max_steps: int | None,
        timeout: float | None,
        max_tokens: int | None,
        max_cost: float | None,
        **options: Any,
    ) -> None:
        # An agent of a file or module has its own number of steps, which only the command line itself replaces.
        context = click.get_current_context()
        if context.params.get("agent_file") is not None and not is_given(context, "max_steps"):
            max_steps = None
        limits = RunLimits(max_steps=max_steps, timeout=timeout, max_tokens=max_tokens, max_cost=max_cost)
        command(*arguments, limits=limits, **options)

    # Decorators apply from the bottom up; reversed, the help lists the options as above.
    for option in reversed(_LIMIT_OPTIONS):
        option(with_limits)
    return with_limits


_DEFAULT_STEPS = 50  # that of `AgentLoop`
_LIMIT_OPTIONS = (
    configured_option(
        "--max-steps",
        type=click.IntRange(min=1),
        metavar="STEPS",
        help=f"Stop after this many steps; {_DEFAULT_STEPS} by default, or the number of the agent.",
    ),
    configured_option("--timeout", type=float, metavar="SECONDS", help="Stop after this time."),
    configured_option(
        "--max-tokens",
        type=click.IntRange(min=1),
        metavar="TOKENS",
        help="Use at most this many tokens, input and output; some are reserved for a last answer.",
    ),
    configured_option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        metavar="DOLLARS",
        help="Spend at most this much, at published prices (requires the extra `prices`). Models without a known price are "
        "assumed expensive.",
    ),
)


# --- the subject ----------------------------------------------------------------------------------------------------

_DEMO_MODES = ("auto", "native")
_DEMO_NOTICE = "The model is scripted: it needs no API key and no network, and it answers the demo's question only."


@frozen(kw_only=True)
class Subject:
    """What a command executes: the loop of an agent, without limits and approvals of the command line.

    Attributes:
        loop: the loop.
        model_name: the model's name, without its provider; empty when unknown.
        provider: the provider of the model; empty when unknown.
        secrets: values that the journal masks.
        dependencies: what the tools receive as `ToolContext.dependencies`.
        principal: who asks for its executions; None for nobody.
        notice: a line about the model, printed before the progress; may be empty.
    """

    loop: AgentLoop
    model_name: str
    provider: str = ""
    secrets: Sequence[Secret] = ()
    dependencies: object = None
    principal: Identity | None = None
    notice: str = ""


@frozen(kw_only=True)
class AgentOptions:
    """The agent that a command line describes by options, by a file, or by the name of a loop in a module.

    Attributes:
        model: the model string, or `demo`; None for the model of the file.
        base_url: the address of the model, if it is not the provider's own.
        file: the file of the agent, or the path of a loop; None for an agent that the options describe.
        variables: the variables of its system prompts.
        places: the files of the tools.
        servers: the MCP servers.
        server_files: the files that describe them.
        allow: the modules that TOML files may name.
        allow_servers: the programs and hosts that the file of the agent may name.
        trust: the files that the person trusts.
        system: the system prompt.
        driver: the driver.
        grants: the values that the person sets for tools of TOML files, by their parameters.
        dependencies: the path of the dependencies, or of the function that makes them; None for none.
        principal: who asks for its executions; None for nobody.
    """

    model: str | None
    base_url: str | None
    file: str | None
    variables: Mapping[str, str]
    places: Sequence[str]
    servers: Sequence[McpEnsemble]
    server_files: Sequence[str]
    allow: Sequence[str]
    allow_servers: Sequence[str]
    trust: Trust
    system: str
    driver: DriverOptions
    grants: Mapping[str, Any]
    dependencies: str | None = None
    principal: Identity | None = None

    @property
    def loop_path(self) -> str:
        """The path of a loop, such as `support:loop` or `support.py:loop`, where `file` is one; else empty."""
        return self.file if self.file is not None and names_loop(self.file) else ""

    @property
    def has_strangers_words(self) -> bool:
        """Whether the instructions or the descriptions of tools are in a file that the person does not trust."""
        files = [] if self.file is None or self.loop_path else [Path(self.file)]
        files += [file for file in map(file_of, self.places) if file.suffix == ".toml"]
        return not all(map(self.trust.covers, files))

    @property
    def default_approval(self) -> str:
        """The value of `--approve` when it is omitted: a server of a stranger describes its tools to the model before anything else is read."""
        if self.model == DEMO_MODEL and not self.places and self.file is None:
            return "all"
        return DEFAULT_APPROVAL if all(map(self.trust.covers, map(Path, self.server_files))) else "ask"

    def read_input(self, question: str | None, attachments: Sequence[str] = ()) -> Input:
        """Return what the command line asks, or the question of the demo.

        Text that is piped into the command precedes the question.

        Args:
            question: the argument; `-` for stdin, None for none.
            attachments: the attached files.

        Raises:
            UsageError: there is no question, or it is empty.
            InvalidUsage: stdin or a file cannot be read.
        """
        parts, quoted = read_attachments(attachments), ""
        require_text(question or "", "the question")
        if question == "-":
            text = read_stdin()
        elif question is not None and not question.strip():
            text = ""
        else:
            piped = read_piped_text()
            if question is not None and piped.strip():
                quoted = piped.strip("\n") + "\n\n"
            text = piped if question is None else f"{quoted}{question}"
        if not text and question is None and not parts:
            if self.model == DEMO_MODEL and self.file is None:
                return demo.QUESTION
            raise click.UsageError(
                "Missing argument 'QUESTION', or a text piped into the command; only the model demo has a question of its own"
            )
        if not text.strip() and not (parts and question is None):
            raise click.UsageError("the question is empty")
        return compose_message(text, parts, quoted=len(quoted))

    def build(self, guards: Sequence[Interceptor] = ()) -> Subject:
        """Build the subject.

        Args:
            guards: interceptors of the agent, and of each sub-agent of a file.

        Raises:
            InvalidUsage: the options contradict each other.
            ConfigurationError: there is no such model, tool or file.
        """
        self.check()
        subject = evolve(self._build(guards), principal=self.principal)
        if (dependencies := load_dependencies(self.dependencies)) is not None:
            subject = evolve(subject, loop=subject.loop.replace(dependencies=dependencies), dependencies=None)
        check_dependencies(subject.loop, subject.dependencies, remedy="or name them with --dependencies MODULE:NAME")
        return subject

    def _build(self, guards: Sequence[Interceptor]) -> Subject:
        if self.loop_path:
            return _subject_of(load_loop(self.loop_path), self.driver)
        if self.file is not None:
            return self._from_file(self.file, guards)
        if self.model == DEMO_MODEL:
            return self._demo(guards)
        config = LLMConfig.parse(str(self.model), base_url=self.base_url)
        tools = load_tools(self.places, self.allow, self.trust, self.grants).plus(*self.servers)
        loop = AgentLoop(
            self.driver.build(HttpInference(config)), tools, system_prompt=self.system, interceptors=guards
        )
        return Subject(loop=loop, model_name=config.model, provider=config.provider, secrets=config.secrets)

    def check(self) -> None:
        """Check that the options fit together.

        Raises:
            InvalidUsage: they contradict each other.
        """
        require_text(self.system, "the system prompt")
        try:
            AllowedModules.of(self.allow)
        except TypeError as error:
            raise InvalidUsage(f"--allow: {error}") from error
        if self.loop_path:
            self._check_loop(self.loop_path)
            return
        if self.model is None and self.file is None:
            raise click.UsageError(
                f"Missing option '--model', or '--agent'; {MODEL_VARIABLE} and `agentloop config set model PROVIDER:MODEL` set a "
                "default model"
            )
        # A file that is not there has no model: reading it says so.
        has_model = self.file is None or Path(self.file).is_file()
        if self.base_url is not None and self.model in {None, DEMO_MODEL} and has_model:
            where = "runs in this process and has no address" if self.model else "has an address of its own"
            raise InvalidUsage(f"the model {self.model or 'of the file of --agent'} {where}; omit --base-url")
        if self.model == DEMO_MODEL and (self.driver.name != "tools" or self.driver.mode not in _DEMO_MODES):
            raise InvalidUsage("the model demo calls tools natively; use --driver tools with --mode auto or native")
        if self.file is None:
            if self.variables or self.allow_servers:
                raise InvalidUsage("--var and --allow-server belong to the file of an agent; name it with --agent")
        else:
            defaults = DriverOptions()
            given = {
                "--system": bool(self.system),
                "--driver": self.driver.name != defaults.name,
                "--mode": self.driver.mode != defaults.mode,
            }
            if any(given.values()):
                names = " and ".join(name for name, is_given in given.items() if is_given)
                raise InvalidUsage(f"the file of --agent decides about {names}; omit it, or change the file")

    def _check_loop(self, path: str) -> None:
        defaults = DriverOptions()
        given = {
            "--model": self.model is not None,
            "--base-url": self.base_url is not None,
            "--var": bool(self.variables),
            "--tools": bool(self.places),
            "--mcp": bool(self.servers),
            "--allow": bool(self.allow),
            "--allow-server": bool(self.allow_servers),
            "--system": bool(self.system),
            "--driver": self.driver.name != defaults.name,
            "--mode": self.driver.mode != defaults.mode,
        }
        names = [name for name, is_there in given.items() if is_there]
        if names:
            raise InvalidUsage(f"the code of {path} decides about {' and '.join(names)}; omit it, or change the code")

    def _from_file(self, file: str, guards: Sequence[Interceptor]) -> Subject:
        model: CanInfer | LLMConfig | None = None
        if self.model is not None:
            is_demo = self.model == DEMO_MODEL
            model = demo.scripted_inference() if is_demo else LLMConfig.parse(self.model, base_url=self.base_url)
        try:
            sources = AgentSources.of(file, self.allow, self.allow_servers, self.variables, trust=self.trust)
        except TypeError as error:
            raise InvalidUsage(str(error)) from error
        parts = {"tools": load_tools(self.places, self.allow, self.trust, self.grants).plus(*self.servers)}
        loop = build_agent(AgentLoop, sources, model, parts, guards=guards, grants=self.grants)
        return _subject_of(loop, self.driver)

    def _demo(self, guards: Sequence[Interceptor]) -> Subject:
        tools = load_tools(self.places, self.allow, self.trust, self.grants) if self.places else None
        loop = AgentLoop(
            self.driver.build(demo.scripted_inference(), demo.CAPABILITIES),
            (Tools.of(demo.TOOLS) if tools is None else tools).plus(*self.servers),
            system_prompt=self.system or demo.SYSTEM_PROMPT,
            interceptors=guards,
        )
        return Subject(
            loop=loop,
            model_name=demo.MODEL_NAME,
            # Tools of the user do not know the demo's services.
            dependencies=demo.DemoCluster() if tools is None else None,
            notice=_DEMO_NOTICE,
        )


def _subject_of(loop: AgentLoop, driver: DriverOptions) -> Subject:
    """Return a loop as what a command executes."""
    configs = list(_configs_of(loop))
    secrets = [secret for config in configs for secret in config.secrets]
    first = configs[0] if configs else None
    model_name, provider = (first.model, first.provider) if first is not None else ("", "")
    streaming = with_streaming(loop) if driver.streaming else loop
    return Subject(loop=streaming, model_name=model_name, provider=provider, secrets=secrets)


def with_streaming(loop: AgentLoop) -> AgentLoop:
    """Return a loop whose driver streams responses, if it calls a model."""
    driver = loop.driver
    return loop.replace(driver=evolve(driver, streaming=True)) if isinstance(driver, InferringDriver) else loop


def _configs_of(loop: AgentLoop) -> Iterator[LLMConfig]:
    """Yield the configurations of the models of a loop and its sub-agents."""
    if isinstance(loop.driver, InferringDriver) and isinstance(loop.driver.inference, HttpInference):
        yield loop.driver.inference.config
    for tool in loop.tools:
        if isinstance(tool, AgentTool) and isinstance(tool.loop, AgentLoop):
            yield from _configs_of(tool.loop)


# --- options of the agent ---------------------------------------------------------------------------------------


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the value of `--model`."""
    return models_with(incomplete)


def models_with(incomplete: str) -> list[str]:
    """Return what a model could begin with: an alias, or a provider and its colon."""
    try:
        aliases = load_configuration().aliases
    except InvalidUsage:  # shown when the command runs
        aliases = {}
    names = [DEMO_MODEL, *aliases, *[f"{provider}:" for provider in PRESETS]]
    return [name for name in names if name.startswith(incomplete)]


_AGENT_OPTIONS = (
    configured_option(
        "--model",
        "-m",
        envvar=MODEL_VARIABLE,
        metavar="PROVIDER:MODEL",
        shell_complete=complete_model,
        help="The model, such as openai:gpt-5, or an alias of it; or demo, a scripted model with its own question and tools, "
        f"without an API key or a network. By default that of {MODEL_VARIABLE}, or of `agentloop config`. Providers: "
        f"{', '.join(PRESETS)}.",
    ),
    click.option("--base-url", metavar="URL", help="The address of the API, if it is not the provider's."),
    click.option(
        "--agent",
        "agent_file",
        type=click.Path(),
        metavar="FILE|MODULE:LOOP",
        help="A TOML or Markdown file that describes the agent; --model then replaces its model, and --tools adds tools. Or a loop "
        "in a module, or a function that returns one: its code decides about its model and tools, and about which calls wait.",
    ),
    click.option(
        "--var",
        "variables",
        multiple=True,
        metavar="NAME=VALUE",
        help="A variable of the system prompts of the file. May be repeated.",
    ),
    click.option(
        "--tools",
        "places",
        multiple=True,
        type=click.Path(),
        metavar="FILE[:NAME]",
        help="A Python file whose tools the model may call, or one tool, ensemble or list of tools in it; or a TOML file that "
        "describes ensembles, or one of them. May be repeated.",
    ),
    mcp_option,
    click.option("--allow", multiple=True, metavar="MODULE", help="A module that a file may name. May be repeated."),
    click.option(
        "--allow-server",
        "allow_servers",
        multiple=True,
        metavar="NAME",
        help="A program or host that the file of the agent may start or connect to; * for any. May be repeated.",
    ),
    trust_option,
    dependencies_option,
    principal_option,
    click.option("--system", "-s", default="", metavar="TEXT", help="The system prompt."),
)
approve_option: Callable[[FC], FC] = configured_option(
    "--approve",
    type=click.Choice(["untrusted", "ask", "all", "none"]),
    help="Which calls need approval, and who gives it. untrusted, the default: calls of tools that are not pure need it once the model "
    "has read the text of others, such as results of tools and attached files. ask: they always need it. With both, the first call of "
    "each MCP server needs it, too, and once the model has read the text of others, calls that send data to a host that no message of "
    "yours names; you are asked on the terminal, and without one the calls stay pending. all approves, and none denies, what needs "
    "approval with ask. An agent, tools or servers in a file that --trust does not name are the text of others, so ask is the default "
    "then. The model demo, whose own tools change nothing outside of the process, needs no approval.",
)
"""The option `--approve`, whose value `approvals` and `decider` take."""


_GRANT_OPTIONS = (
    click.option(
        "--may-write",
        multiple=True,
        metavar="PATTERN",
        help="A protected path, such as conftest.py or '.git/hooks/*', that tools which a TOML file describes may write. May be "
        "repeated.",
    ),
    click.option(
        "--executable",
        is_flag=True,
        help="Files that commands in a sandbox make executable are so afterwards, for tools which a TOML file describes.",
    ),
)


def _grant_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options by which a person allows tools of TOML files more; the command receives them as its argument `grants`."""

    @wraps(command)
    def with_grants(*arguments: Any, may_write: Sequence[str], executable: bool, **options: Any) -> None:
        command(*arguments, grants={"may_write": list(may_write), "executable": executable}, **options)

    decorated: Callable[..., None] = with_grants
    for option in reversed(_GRANT_OPTIONS):
        decorated = option(decorated)
    return decorated


def agent_options(command: Callable[..., None], *, streams: bool = False) -> Callable[..., None]:
    """Add the options that describe an agent to a command, which receives them as its argument `agent`.

    Args:
        command: the command.
        streams: whether the command always streams, so that it has no option `--stream`.
    """

    @wraps(command)
    def with_agent(  # noqa: PLR0913  # one parameter for each option
        *arguments: Any,
        model: str | None,
        base_url: str | None,
        agent_file: str | None,
        variables: Sequence[str],
        places: Sequence[str],
        mcp: Sequence[str],
        allow: Sequence[str],
        allow_servers: Sequence[str],
        grants: Mapping[str, Any],
        trust: Sequence[str],
        system: str,
        driver: DriverOptions,
        dependencies: str | None,
        principal: Identity | None,
        **options: Any,
    ) -> None:
        trusted = trust_of(trust)
        with as_usage_errors():
            servers = load_servers(mcp, trusted)
        agent = AgentOptions(
            model=_resolve_model(model, agent_file),
            base_url=base_url,
            file=agent_file,
            variables=parse_variables(variables),
            places=places,
            servers=servers,
            server_files=mcp,
            allow=allow,
            allow_servers=allow_servers,
            trust=trusted,
            system=system,
            driver=driver,
            grants=grants,
            dependencies=dependencies,
            principal=principal,
        )
        command(*arguments, agent=agent, **options)

    # Decorators apply from the bottom up; reversed, the help lists the options as above.
    decorated: Callable[..., None] = _grant_options(driver_options(with_agent, streams=streams))
    for option in reversed(_AGENT_OPTIONS):
        decorated = option(decorated)
    return decorated


def _resolve_model(model: str | None, agent_file: str | None) -> str | None:
    """Return the model string of an option or a default; None for the model of the file of an agent."""
    if model is None or (agent_file is not None and not is_given(click.get_current_context(), "model")):
        return None
    # A model with its provider needs no alias, so that a mistake in the file does not matter to it.
    return require_text(model, "the name of the model") if ":" in model else load_configuration().resolve_model(model)


def parse_variables(texts: Sequence[str]) -> dict[str, str]:
    """Parse the values of `--var`.

    Raises:
        InvalidUsage: one is not of the form NAME=VALUE.
    """
    for text in texts:
        if "=" not in text:
            raise InvalidUsage(f"--var {text} has no value; write --var NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


# --- approvals ------------------------------------------------------------------------------------------------------

DEFAULT_APPROVAL = "untrusted"
"""The value of `--approve` for everything but the demo."""
_INSIDE_ENSEMBLES = -901  # so that a person reads the reason of an ensemble that asks itself


def approvals(
    approve: str, grants: SessionGrants, *, from_start: bool = False, has_journal: bool = False
) -> list[Interceptor]:
    """Return the interceptors that suspend calls that may change something, and calls by which data can leave.

    Args:
        approve: the value of `--approve`.
        grants: the approvals of a person for the session, and the loop with the servers.
        from_start: whether a stranger has written the instructions of the model, so that all its calls are decided after reading them.
        has_journal: whether the executions are recorded, so that grants of their journal hold.
    """
    if approve == "all":
        return []  # calls that an ensemble suspends are approved when they are pending
    approval: Interceptor
    if approve == "untrusted" and not from_start:
        # About pure calls by which data can leave, the other one asks: by hosts and servers, which a person can name and approve.
        approval = AskUntrusted(unless=[Rule(effect=Effect.PURE)], priority=_INSIDE_ENSEMBLES)
    else:
        effects = [Rule(effect=effect) for effect in Effect if effect is not Effect.PURE]
        approval = UngrantedApproval(RequireApproval(effects), grants, _INSIDE_ENSEMBLES)
    return [
        AskUnlessGranted(approval) if has_journal else approval,
        EgressApproval([grants.is_of_server], unless=[grants.covers_places], from_start=from_start),
    ]


def print_unasked(loop: AgentLoop, approve: str = DEFAULT_APPROVAL) -> None:
    """Print the tools that run without a question to stderr, and on whose word they do; nothing if there are none."""
    lines = format_unasked(unasked_tools(loop), max_names=_MAX_SHOWN_NAMES)
    if lines and approve == "all":
        lines = ["every tool runs without a question: --approve all"]
    print_lines(lines)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to stderr."""
    for line in lines:
        click.echo(line, err=True)


def unasked_lines(agents: Mapping[str, AgentLoop]) -> list[str]:
    """Return the lines about the tools of several loops that run without a question, by the names of the loops."""
    lines: list[str] = []
    for name, loop in agents.items():
        table = format_unasked(unasked_tools(loop), max_names=_MAX_SHOWN_NAMES)
        lines += [*([f"{as_one_line(name)}:"] if table and len(agents) > 1 else []), *table]
    return lines


_MAX_SHOWN_NAMES = 20


def decider(approve: str, grants: SessionGrants) -> Decider:
    """Return what decides about pending calls under a value of `--approve`; a person may add to the grants."""
    if approve == "all":
        return approve_call
    if approve == "none":
        return deny_call
    return TerminalApprover(create_console(stderr=True), grants) if can_prompt() else leave_pending
