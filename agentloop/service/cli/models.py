"""`agentloop models`: the providers, what is known of a model, and the models of self-hosted servers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import click
from attrs import asdict, frozen

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.models import explain_mode
from agentloop.models.config import LLMConfig, find_preset
from agentloop.models.model_capabilities import capabilities
from agentloop.models.presets import PRESETS, Preset, suggest_provider
from agentloop.models.server_questions import ask_anew
from agentloop.service.cli.agent_options import complete_model
from agentloop.service.cli.configuration import load_configuration
from agentloop.service.cli.console import as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage, as_usage_errors
from agentloop.service.cli.tables import Column, Fit, print_table
from agentloop.values.secrets import Secret

# --- what is known --------------------------------------------------------------------------------------------------


@frozen
class ProviderSummary:
    """What is known of a provider here; no key is in it.

    Attributes:
        provider: the name of the provider.
        wire_format: the name of its wire format.
        address: its address; empty if a variable that it needs is not set.
        variables: whether each variable with a key is set.
        needs_key: whether a key has to be given.
        problem: why the provider cannot be used here; empty when it can.
    """

    provider: str
    wire_format: str
    address: str
    variables: Mapping[str, bool]
    needs_key: bool
    problem: str

    @classmethod
    def of(cls, preset: Preset) -> ProviderSummary:
        """Return the summary of a provider in the environment of the process."""
        problem, address = "", ""
        try:
            address = LLMConfig.parse(f"{preset.name}:any", api_key="-").address
            LLMConfig.parse(f"{preset.name}:any")
        except ConfigurationError as error:
            problem = str(error)
        variables = {name: bool(os.environ.get(name)) for name in preset.all_key_variables}
        return cls(preset.name, preset.wire_format, address, variables, _needs_key(preset), problem)

    @property
    def key(self) -> str:
        """The variables of the key, and whether one is set."""
        present = [name for name, is_set in self.variables.items() if is_set]
        if present:
            return f"{present[0]} is set"
        if not self.variables:
            return self.problem or "not needed"
        names = " or ".join(self.variables)
        return f"{names} is not set" if self.needs_key else self.problem or f"not needed; {names} is not set"


def _needs_key(preset: Preset) -> bool:
    return preset.needs_key and bool(preset.all_key_variables or preset.default_key)


@frozen
class ModelSummary:
    """What is known of a model.

    Attributes:
        model: the model, as `provider:model`.
        provider: its provider.
        mode: the mode in which `auto` calls tools.
        reason: why.
        parallel_tool_calls: whether it can make several calls in one response.
        streaming: whether its responses can be streamed.
        structured_output: what its responses can be constrained to; None for nothing.
    """

    model: str
    provider: ProviderSummary
    mode: str
    reason: str
    parallel_tool_calls: bool
    streaming: bool
    structured_output: str | None

    @classmethod
    def of(cls, model: str) -> ModelSummary:
        """Return the summary of a model.

        Raises:
            InvalidUsage: there is no such provider, or the model has no name.
        """
        provider, _, name = model.partition(":")
        if not name.strip():
            raise InvalidUsage(f"{model!r:.200} names no model of {provider}; omit the colon for the provider itself")
        preset, known, choice = _preset(provider), capabilities(model), explain_mode(model)
        return cls(
            model,
            ProviderSummary.of(preset),
            choice.mode,
            choice.reason,
            known.parallel_tool_calls,
            known.streaming,
            known.structured_output,
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines for people: a name and a value."""
        return [
            ("mode", f"{self.mode}: {self.reason}"),
            ("parallel calls", "yes" if self.parallel_tool_calls else "no"),
            ("structured output", (self.structured_output or "no").replace("_", " ")),
            ("streaming", "yes" if self.streaming else "no"),
        ]


def _preset(provider: str) -> Preset:
    try:
        return find_preset(provider.strip().lower())
    except ConfigurationError as error:
        raise InvalidUsage(str(error)) from error


# --- servers --------------------------------------------------------------------------------------------------------

_LISTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "openai-chat": ("/models", "data", "id"),
    "ollama": ("/api/tags", "models", "name"),
}
"""For each wire format that has one, the path of the list of models, the key of the list and that of a name."""
_MAX_WAIT = 5.0
_MAX_BYTES = 20_000_000


@frozen
class ServerModels:
    """The answer of a server about its models.

    Attributes:
        provider: the name of the provider.
        address: the address of the server.
        models: its models, as `provider:model`.
        problem: why it has not answered; empty when it has.
    """

    provider: str
    address: str
    models: Sequence[str] = ()
    problem: str = ""

    @classmethod
    def ask(cls, config: LLMConfig) -> ServerModels:
        """Ask a server for its models."""
        path, list_key, name_key = _LISTS[config.wire_format]
        headers = config.auth_headers() if isinstance(config.api_key, Secret | None) else {}
        # A key is never sent to where a server redirects.
        opener = build_opener(_NoRedirect)
        try:
            with opener.open(Request(config.url(path), headers=headers), timeout=_MAX_WAIT) as response:  # noqa: S310  # the configuration allows http and https only
                document = json.loads(response.read(_MAX_BYTES))
            names = [str(entry[name_key]) for entry in document[list_key]]
        except HTTPError as error:
            error.close()
            return cls(config.provider, config.address, problem=f"the server responded with HTTP {error.code}")
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            reason = getattr(reason, "strerror", None) or reason
            return cls(config.provider, config.address, problem=f"no server answers: {reason}")
        except (ValueError, TypeError, KeyError):
            return cls(config.provider, config.address, problem="the server has not answered with a list of models")
        return cls(config.provider, config.address, sorted(f"{config.provider}:{name}" for name in names))


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect."""


def _configurations(presets: Iterable[Preset], base_url: str | None) -> list[LLMConfig]:
    """Return the self-hosted servers among the providers, each address once."""
    configs: dict[str, LLMConfig] = {}
    for preset in presets:
        if not _needs_key(preset) and preset.wire_format in _LISTS:
            config = LLMConfig.parse(f"{preset.name}:any", base_url=base_url)
            configs.setdefault(urlsplit(config.address).netloc, config)
    return list(configs.values())


# --- what a server can do ----------------------------------------------------------------------------------------------


@frozen
class ServerSummary:
    """What a server says that it can do with a model, and the mode that follows.

    Attributes:
        address: the address of the server.
        model: its name for the model.
        server: the name of its software; empty if it does not say what it is.
        tools: whether the template of the model has tools; None if the server does not say it.
        enforces_schemas: whether it constrains answers to a schema; None if it does not say what it is.
        mode: the mode in which `auto` calls a model that no row of yours names.
        reason: why.
    """

    address: str
    model: str
    server: str
    tools: bool | None
    enforces_schemas: bool | None
    mode: str
    reason: str

    @classmethod
    def ask(cls, url: str, name: str | None) -> ServerSummary:
        """Ask a server.

        Args:
            url: its address, with or without the path of its API.
            name: the model, as `provider:model`; None for the first one that the server lists.
        """
        config = LLMConfig.parse(name or "llamacpp:any", base_url=url)
        if name is None and (listed := ServerModels.ask(config).models):
            config = config.with_settings(model=listed[0].partition(":")[2])
        found = asyncio.run(ask_anew(config, config.model))
        if found is None:
            return cls(config.address, config.model, "", None, None, "native", _UNASKED)
        reason = found.reason if found.has_tools is not None else f"{found.reason}: {_TRIED}"
        return cls(
            config.address, config.model, found.server, found.has_tools, found.enforces_schemas, found.mode, reason
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return the lines for people: a name and a value."""
        said = {None: "not said", True: "yes", False: "no"}
        return [
            ("address", self.address),
            ("server", self.server or "not said"),
            ("model", self.model),
            ("tools", said[self.tools]),
            ("enforces schemas", said[self.enforces_schemas]),
            ("mode", f"{self.mode}: {self.reason}"),
        ]


_TRIED: Final = "its tool API is tried first, and the tokens of the first prompt show whether the tools are left out"
_UNASKED: Final = f"the server does not say what it can do: {_TRIED}"


# --- the command ----------------------------------------------------------------------------------------------------

_EPILOG = """\
\b
Examples:
  agentloop models
  agentloop models openai
  agentloop models ollama:qwen3
  agentloop models ollama --list
  agentloop models --ask http://localhost:8080

\b
Exit codes:
  0  the question is answered
  1  --list: no server has answered; --ask: the server does not say what it can do
  2  usage error, such as an unknown provider
"""


@click.command(epilog=_EPILOG)
@click.argument("name", required=False, metavar="[PROVIDER|MODEL]", shell_complete=complete_model)
@click.option(
    "--list",
    "lists",
    is_flag=True,
    help="Ask the server of PROVIDER for its models, or all self-hosted servers: those that need no key, such as Ollama and vLLM.",
)
@click.option(
    "--base-url", metavar="URL", help="With --list: the address of the server, if it is not that of PROVIDER."
)
@click.option(
    "--ask",
    "asked_url",
    metavar="URL",
    help="Ask the server at URL what it can do with MODEL, or with its first model, and print the mode that `auto` chooses.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def models(
    context: click.Context,
    *,
    name: str | None,
    lists: bool,
    base_url: str | None,
    asked_url: str | None,
    as_json: bool,
) -> None:
    """Show the providers, or what is known of a model, for example `agentloop models openai:gpt-5`.

    For a provider: its wire format, its address, and the environment variables of its key, with whether one is set; keys are
    never shown. For a model or an alias: the mode in which its tools are called, and why.
    """
    if asked_url is not None:
        if lists or base_url is not None:
            raise InvalidUsage("--ask takes the address itself, and no --list or --base-url beside it")
        with as_usage_errors():
            summary = ServerSummary.ask(asked_url, name)
        _print([summary], _print_servers, as_json=as_json)
        context.exit(int(not summary.server))
    if lists:
        with as_usage_errors():
            answers = _ask_servers(name, base_url)
        _print_lists(answers, as_json=as_json)
        context.exit(int(all(answer.problem for answer in answers)))
    if base_url is not None:
        raise InvalidUsage("--base-url is the address that --list asks; add --list, or omit it")
    if name is None:
        _print(list(map(ProviderSummary.of, PRESETS.values())), _print_providers, as_json=as_json)
    elif name.strip().lower() in PRESETS:
        _print([ProviderSummary.of(_preset(name))], _print_providers, as_json=as_json)
    else:
        _print([_describe_model(name)], _print_models, as_json=as_json)


def _describe_model(name: str) -> ModelSummary:
    configuration = load_configuration()
    if ":" not in name and name not in configuration.aliases:
        known = suggest(name.lower(), configuration.aliases) or suggest_provider(name)
        raise InvalidUsage(f"there is no provider and no alias {name!r:.200}{known}")
    return ModelSummary.of(configuration.resolve_model(name))


def _print(summaries: Sequence[Any], print_all: Callable[[Sequence[Any]], None], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(summary) for summary in summaries], indent=2))
    else:
        print_all(summaries)


def _ask_servers(name: str | None, base_url: str | None) -> list[ServerModels]:
    if base_url is not None and name is None:
        raise InvalidUsage(
            "--base-url is the address of one server; name its provider, as in agentloop models vllm --list"
        )
    configs = _configurations(PRESETS.values() if name is None else [_preset(name)], base_url)
    if not configs:
        raise InvalidUsage(f"--list asks self-hosted servers, which need no key; {name} is not one of them")
    with ThreadPoolExecutor(max_workers=len(configs)) as pool:
        return list(pool.map(ServerModels.ask, configs))


def _print_lists(answers: Sequence[ServerModels], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(answer) for answer in answers], indent=2))
    for answer in answers:
        if not as_json:
            click.echo("".join(f"{as_one_line(model)}\n" for model in answer.models), nl=False)
        note = answer.problem or ("" if answer.models else "the server has no models")
        if note:
            click.echo(as_one_line(f"{answer.provider} at {answer.address}: {note}"), err=True)


def _print_servers(summaries: Sequence[ServerSummary]) -> None:
    for summary in summaries:
        for label, value in summary.rows():
            click.echo(as_one_line(f"{label:<17} {value}"))


def _print_providers(summaries: Sequence[ProviderSummary]) -> None:
    columns = [Column("provider"), *[Column(name, Fit.WRAPPED) for name in ("wire format", "key", "address")]]
    rows = [[summary.provider, summary.wire_format, summary.key, summary.address] for summary in summaries]
    print_table(create_console(), columns, rows)


def _print_models(summaries: Sequence[ModelSummary]) -> None:
    rows = list[tuple[str, str]]()
    for summary in summaries:
        provider = summary.provider
        place = [
            ("wire format", provider.wire_format),
            ("address", provider.address or "unknown"),
            ("key", provider.key),
        ]
        rows += [("model", summary.model), *summary.rows(), *place]
    print_table(create_console(), [Column(""), Column("", Fit.WRAPPED)], rows)
