"""Tests of the suggestions in messages about unknown names."""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.errors.hints import suggest
from agentloop.models import PRESETS
from agentloop.models.presets import suggest_provider


@pytest.mark.parametrize(
    ("name", "known", "suggested"),
    [
        ("ekko", ["say", "echo"], "echo"),
        ("ad", ["add", "at_most"], "add"),
        ("tiemout", ["timeout", "time"], "timeout"),
        ("SYSTEM_PROMPT", ["system_prompt"], "system_prompt"),
        ("state.metadata", ["state.messages", "state.context.metadata"], "state.context.metadata"),
        ("read_fil", ["read_file", "read_files"], "read_file"),
        ("sytem", ["model", "system_prompt"], "system_prompt"),
        ("nope", ["none_of_these", "openai"], ""),
        ("x", ["y", "z"], ""),
        ("", ["a"], ""),
        ("a" * 10_000, ["a" * 10_000, "a"], ""),
        ("weather", [], ""),
        ("pay</arg_value>", ["say", "pay"], "pay"),
        ("<tool_call>pay", ["say", "pay"], "pay"),
        ("pay<|channel|>commentary", ["say", "pay"], "pay"),
        ("pay<arg_key>account</arg_key><arg_value>" + "A" * 300, ["say", "pay"], "pay"),
        ("sea.tides:0", ["sea", "sea.tides"], "sea.tides"),
    ],
)
def test_a_suggestion_is_close(name: str, known: list[str], suggested: str) -> None:
    """A misspelled name has a suggestion, and another name has none."""
    assert suggest(name, known) == (f", did you mean {suggested!r}?" if suggested else "")


@pytest.mark.parametrize("name", ["pay</arg_value>", "<|tool_call_begin|>pay", "pay`", "pay(account="])
def test_a_token_next_to_the_name_of_a_call_does_not_hide_it(name: str) -> None:
    """A server that splits an answer at the wrong place leaves a token at the name; the model is told the name that it meant."""

    def pay(account: str) -> str:
        """Pay."""
        return "paid"

    def say(text: str) -> str:
        """Say."""
        return "said"

    model = ScriptedInference(ToolCall("1", name, '{"account": "A-7"}'), "I could not.")
    state = AgentLoop.for_model(model, tools=[say, pay]).execute_sync("Pay.")
    assert "did you mean 'pay'?" in state.steps[0].executions[0].text


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("grok", "xai"),
        ("claude", "anthropic"),
        ("Claude-Sonnet-5", "anthropic"),
        ("gpt", "openai"),
        ("gpt-5", "openai"),
        ("google", "gemini"),
        ("kimi", "moonshot"),
        ("opnai", "openai"),
        ("olama", "ollama"),
        ("nope", ""),
        ("local", ""),
        ("", ""),
    ],
)
def test_a_family_of_models_suggests_its_provider(name: str, provider: str) -> None:
    """What is written in place of a provider may be a family of its models, or a misspelled provider."""
    assert suggest_provider(name) == (f", did you mean {provider!r}?" if provider else "")


def test_no_family_is_the_name_of_a_provider() -> None:
    """A family belongs to one provider and hides none."""
    families = [family for preset in PRESETS.values() for family in preset.families]
    assert len(families) == len(set(families))
    assert PRESETS.keys().isdisjoint(families)
