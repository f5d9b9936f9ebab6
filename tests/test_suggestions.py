"""Tests of the suggestions in messages about unknown names."""

from __future__ import annotations

import pytest

from agentloop.errors import suggest
from agentloop.inference import PRESETS
from agentloop.inference.presets import suggest_provider


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
    ],
)
def test_a_suggestion_is_close(name: str, known: list[str], suggested: str) -> None:
    """A misspelled name has a suggestion, and another name has none."""
    assert suggest(name, known) == (f", did you mean {suggested!r}?" if suggested else "")


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
