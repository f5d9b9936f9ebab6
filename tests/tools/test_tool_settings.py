"""A setting of a tool or of a request that makes no sense is refused where it is given."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, tool
from agentloop.contracts import ToolPolicy
from agentloop.errors import AgentLoopError, ConfigurationError
from agentloop.values import InferenceOptions
from agentloop.values.inference import InferenceOptionsDict

FLAGS = ("sequential", "strict", "eager", "reads_results", "repeatable", "runs_code")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in FLAGS
        for value in ("yes", "", 1, 0, None)
        if (name, value) != ("repeatable", None)  # None: a cache or a deduplication exempts the tool
    ],
)
def test_a_flag_is_true_or_false(name: str, value: Any) -> None:
    """A text such as "no" is not read as True."""
    with pytest.raises((TypeError, AgentLoopError), match=name):
        ToolPolicy(**{name: value})


@pytest.mark.parametrize("settings", [{"max_result_bytes": 0}, {"max_result_bytes": -1}, {"name": ""}, {"name": " "}])
def test_a_tool_without_sense_is_refused(settings: dict[str, Any]) -> None:
    """No result fits into nothing, and a model cannot call a tool without a name."""
    with pytest.raises(AgentLoopError, match=next(iter(settings))):

        @tool(**settings)
        def look() -> str:
            """Look."""
            return "seen"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"temperature": 9.0},
        {"temperature": -0.1},
        {"top_p": 5.0},
        {"top_p": -1.0},
    ],
)
def test_a_sampling_setting_out_of_its_range_is_refused(settings: InferenceOptionsDict) -> None:
    """The options and the loop refuse what every provider would."""
    (name,) = settings
    with pytest.raises(ConfigurationError, match=name):
        InferenceOptions(**settings)
    with pytest.raises(ConfigurationError, match=name):
        AgentLoop.for_model(ScriptedInference("done"), options=settings)
