"""Tools of sub-agents and handoffs, and wrappers of them, keep their laws."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop.contracts import Tool
from agentloop.errors import ConfigurationError
from agentloop.testing import AgentToolKit, LawNotChecked, ToolKit
from agentloop.testing.kit_choice import kit_of
from agentloop.toolkits.overrides import ToolOverride, apply_override
from tests.generated import examples
from tests.testing.lawful_agents import LAWFUL_AGENTS, Around


def plain(tool: Tool) -> Tool:
    """Return the tool."""
    return tool


def renamed(tool: Tool) -> Tool:
    """Return the tool as an ensemble offers it under another name."""
    return apply_override(tool, ToolOverride(name=f"our_{tool.name}", policy={"max_result_bytes": 9_000}))


@pytest.mark.parametrize("law", AgentToolKit.laws)
@pytest.mark.parametrize("wrap", [plain, renamed, *LAWFUL_AGENTS])
def test_tools_that_delegate_keep_the_laws(wrap: Callable[[Tool], Tool], law: int) -> None:
    """Those of the package do, without a wrapper and in an ensemble, and so do wrappers that people write."""
    AgentToolKit(wrap, examples=examples(5)).check(law)


class Speaks(Around):
    """Changes each result, so that it is for agents alone."""

    async def use(self, *_: object, **arguments: object) -> object:
        result = await super().use(**arguments)
        return f"{result} indeed" if isinstance(result, str) else result


def test_a_wrapper_may_be_for_agents_alone() -> None:
    """Law 40 is checked for wrappers of handoffs."""
    AgentToolKit(Speaks, handoffs=False, examples=1).check(40)


def test_a_wrapper_is_named_as_one() -> None:
    """Its class is that of a tool, which other kits check, so that `--agentloop-kit-as` says what it is."""
    assert isinstance(kit_of("tests.testing.lawful_agents:Around", "agent"), AgentToolKit)
    with pytest.raises(ConfigurationError, match="is a tool, and"):
        kit_of("tests.testing.lawful_agents:Around")
    assert ToolKit.laws != AgentToolKit.laws


def test_a_wrapper_without_an_answer_keeps_no_law() -> None:
    """Nothing is checked where no agent answers."""

    class Refuses(Around):
        async def use(self, *_: object, **arguments: object) -> object:
            raise RuntimeError("no")

    with pytest.raises(LawNotChecked, match="the call of an agent that works did not succeed"):
        AgentToolKit(Refuses, examples=1).check(9)
