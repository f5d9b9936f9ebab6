"""Batches of toy calls, good and bad, and an interceptor that meddles with them."""

from __future__ import annotations

from hypothesis import strategies as st

from agentloop.interception.interceptor import Interceptor
from agentloop.testing.toy_tools import call
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.tool_call import ToolCall

_NAMES = ("echo", "whoami", "fail", "stop", "broken", "alone", "keyed", "hasty")
_ASYNC_CALLS = st.builds(
    call,
    st.sampled_from(_NAMES),
    st.integers(0, 30),
    id=st.sampled_from(["", "call_1", "call_2"]),
    seconds=st.sampled_from([0, 0.5, 2, 3]),
    key=st.sampled_from(["a", "b"]),
)
_PLAIN_CALLS = st.builds(call, st.sampled_from(["plain", "echo", "alone"]), st.integers(0, 30))
_BAD_CALLS = st.one_of(
    st.builds(call, st.sampled_from(["ekko", "", "no such tool"]), st.integers(0, 5)),
    st.builds(call, st.just("echo"), st.sampled_from(["text", -1, None, 1.5, [1]])),
    st.builds(call, st.just("echo"), st.just(1), surplus=st.booleans()),
    st.builds(
        ToolCall,
        st.just("x"),
        st.just("echo"),
        st.sampled_from(['{"value": 1', "[1]", '"text"', "nonsense", "NaN", '{"value": NaN}', "", "null", "{} {}"]),
    ),
)


def _mostly(good: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[ToolCall]:
    """Draw four good calls for each bad one."""
    return st.integers(0, 4).flatmap(lambda one: _BAD_CALLS if one == 0 else good)


BATCHES = st.lists(_mostly(_ASYNC_CALLS), max_size=8)
"""Batches of good and bad calls of the toys; waiting takes virtual time."""
PLAIN_BATCHES = st.lists(_mostly(_PLAIN_CALLS), max_size=6)
"""Batches that use threads."""


class Gatekeeper(Interceptor):
    """Blocks, answers, suspends and changes calls, each by the value that the call carries; counts in the state."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Give a verdict by the value."""
        seen = point.state.context.metadata.get("seen", 0)
        point = point.with_state(point.state.with_metadata(seen=seen + 1))
        value = point.arguments["value"]
        if value == 3:  # noqa: PLR2004  # any numbers will do, as long as they differ
            return point.block("three is not allowed")
        if value == 4:  # noqa: PLR2004
            return point.answer(44)
        if value == 5:  # noqa: PLR2004
            return point.suspend("five needs a decision")
        return point.with_arguments({**point.arguments, "value": 60}) if value == 6 else point  # noqa: PLR2004

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Change some outcomes."""
        return point.with_value("changed") if point.execution.value == 7 else point  # noqa: PLR2004
