"""Who is asked what, and with which tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from attrs import evolve, frozen

from agentloop.cli.bad_usage import BadUsage
from agentloop.cli.demo import scripted_model, story
from agentloop.cli.demo.shop import Shop
from agentloop.cli.demo.support_tools import TOOLS
from agentloop.cli.tool_files import tools_from
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tools import Tools
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_inference import HttpInference
from agentloop.inference.model_table.capability_row import CapabilityRow
from agentloop.inference.secret import Secret

DEMO = "demo"
"""The model that needs no key and no network."""
_SCRIPTED = "The model is scripted: it needs no key and no network, and it answers the demo's questions only."


@frozen(kw_only=True)
class Subject:
    """Who is asked what, and with which tools.

    Attributes:
        question: what is asked.
        inference: the model.
        model_name: its name, without its provider.
        tools: what it may call.
        system_prompt: the instructions before the question.
        secrets: what is not to be written down.
        models: what models are able to do, before what is known of the published ones.
        rules: what holds for the tools.
        dependencies: what the tools get as `ToolContext.dependencies`.
        notice: what has to be said about the model; may be empty.
        account: says what came of it in the world, as far as that is known; may be empty.
    """

    question: str
    inference: CanInfer
    model_name: str
    tools: Tools
    system_prompt: str
    secrets: Sequence[Secret] = ()
    models: Sequence[CapabilityRow] = ()
    rules: Sequence[CanIntercept] = ()
    dependencies: object = None
    notice: str = ""
    account: Callable[[], str] = str


def subject_of(
    model: str,
    question: str | None,
    places: Sequence[str],
    stack: ExitStack,
    *,
    allow: Sequence[str],
    base_url: str | None,
    system: str,
) -> Subject:
    """Find out what a command line speaks of.

    Args:
        model: the model string, or `demo`.
        question: the question, `-` for the one on stdin; None for the demo's own.
        places: the files of the tools.
        stack: closes what is made for the execution.
        allow: the modules that TOML files of tools may name.
        base_url: another address of the model.
        system: the instructions.

    Raises:
        BadUsage: when it contradicts itself.
        ConfigurationError: when there is no such model or no such tool.
    """
    if model == DEMO:
        if base_url is not None:
            raise BadUsage("the model demo is in this program and has no address; leave --base-url out")
        asked = story.COMPLAINT if question is None else _read(question)
        return _demo(asked, tools_from(places, allow) if places else None, stack, system)
    if question is None:
        raise click.UsageError("Missing argument 'QUESTION'; only the model demo has a question of its own")
    asked, tools = _read(question), tools_from(places, allow)
    config = LLMConfig.parse(model, base_url=base_url)
    return Subject(
        question=asked,
        inference=HttpInference(config),
        model_name=config.model,
        tools=tools,
        system_prompt=system,
        secrets=config.secrets,
    )


def _demo(question: str, tools: Tools | None, stack: ExitStack, system: str) -> Subject:
    subject = Subject(
        question=question,
        inference=story.inference(),
        model_name=scripted_model.NAME,
        tools=Tools.of(TOOLS) if tools is None else tools,
        system_prompt=system or story.SYSTEM_PROMPT,
        models=story.MODELS,
        notice=_SCRIPTED,
    )
    if tools is not None:
        return subject
    folder = stack.enter_context(TemporaryDirectory(prefix="agentloop-demo-"))
    shop = Shop.founded(Path(folder) / "shop.db")
    return evolve(
        subject,
        rules=story.rules(),
        dependencies=shop,
        account=lambda: f"in the database: {shop.sum()}",
    )


def _read(question: str) -> str:
    if question == "-":
        try:
            question = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise BadUsage(f"the question on stdin is not text: {error}") from error
    if not question.strip():
        raise click.UsageError("the question is empty")
    return question
