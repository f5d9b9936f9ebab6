"""What a model decides, turn by turn, in a form that any driver can be made to follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from attrs import field, frozen
from hypothesis import strategies as st

from agentloop.drivers.scripted import ScenarioStep, ScriptedDriver
from agentloop.inference.scripted import ScriptedInference, ScriptLine
from agentloop.testing.toys import toy_call
from agentloop.values.inference import FinishReason, InferenceResponse, Usage
from agentloop.values.json import format_json, thaw
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class ScriptedTurn(Value):
    """One decision: calls of toys, or an answer.

    Attributes:
        text: what the model says.
        calls: what it calls; without calls, the text is its answer.
        usage: the tokens that the provider reports.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage(10, 5, 0, 0, 0)  # noqa: RUF009  # immutable

    def response(self, number: int) -> InferenceResponse:
        """Return the turn as a model's response."""
        text: list[ResponsePart] = [Text(self.text)] if self.text else []
        finish = FinishReason.TOOL_CALLS if self.calls else FinishReason.STOP
        return InferenceResponse((*text, *self.calls), finish, self.usage, "scripted", f"response_{number}")


Notation: TypeAlias = Callable[[ScriptedTurn, int], InferenceResponse]
"""Makes a model's response of a turn and its number."""


@frozen(eq=False, repr=False)
class Scenario(Value):
    """A conversation in the making: turns with calls, and an answer at the end.

    Attributes:
        question: what the user asks.
        turns: what the model decides, one after the other.
    """

    question: str = "What now?"
    turns: tuple[ScriptedTurn, ...] = field(default=(), converter=tuple[ScriptedTurn, ...])

    def inference(self, write: Notation = ScriptedTurn.response) -> ScriptedInference:
        """Return a model that follows the scenario.

        Args:
            write: how it writes its turns, one of `NOTATIONS`; by native tool calls when left out.
        """
        lines: list[ScriptLine] = [write(turn, number) for number, turn in enumerate(self.turns)]
        return ScriptedInference(*lines)

    def driver(self) -> ScriptedDriver:
        """Return a driver that follows the scenario without a model."""
        steps = []
        for turn in self.turns:
            calls = [(one.name, one.arguments) for one in turn.calls]
            made = ScenarioStep.tool_calls(*calls, text=turn.text, usage=turn.usage) if calls else None
            steps.append(made or ScenarioStep.final(turn.text, usage=turn.usage))
        return ScriptedDriver(*steps)


_CALLS = st.builds(
    toy_call,
    st.sampled_from(["echo", "echo", "whoami", "fail", "alone", "keyed", "ekko"]),
    st.one_of(st.integers(0, 30), st.integers(-1, 1)),
    id=st.sampled_from(["", "call_1", "call_2"]),
    seconds=st.sampled_from([0, 1, 2]),
)
_USAGES = st.builds(
    Usage,
    st.one_of(st.none(), st.integers(0, 1000)),
    st.integers(0, 1000),
    st.one_of(st.none(), st.integers(0, 100)),
    st.integers(0, 10),
    st.integers(0, 10),
)
_TEXTS = st.sampled_from(["", "Let me look.", "One moment…"])
_ACTING = st.builds(ScriptedTurn, _TEXTS, st.lists(_CALLS, min_size=1, max_size=3).map(tuple), _USAGES)
_ANSWERING = st.builds(ScriptedTurn, st.sampled_from(["done", "the answer is 42"]), st.just(()), _USAGES)

SCENARIOS = st.builds(
    lambda acting, answering: Scenario(turns=(*acting, answering)), st.lists(_ACTING, max_size=4), _ANSWERING
)
"""Scenarios of up to four turns with calls of toys, good and bad, and an answer."""

_VALID = ("echo", "echo", "whoami", "fail", "broken", "alone", "keyed")


def valid_scenarios(*more: str) -> st.SearchStrategy[Scenario]:
    """Return scenarios whose calls can all be executed, whatever comes of them.

    Args:
        *more: the names of further toys to call, such as `stop`.
    """
    calls = st.builds(
        toy_call,
        st.sampled_from([*_VALID, *more]),
        st.integers(0, 30),
        id=st.sampled_from(["", "call_1", "call_2"]),
        seconds=st.sampled_from([0, 1, 2]),
    )
    acting = st.builds(ScriptedTurn, _TEXTS, st.lists(calls, min_size=1, max_size=3).map(tuple), _USAGES)
    return st.builds(
        lambda turns, answering: Scenario(turns=(*turns, answering)), st.lists(acting, max_size=4), _ANSWERING
    )


VALID_SCENARIOS = valid_scenarios()
"""Scenarios for drivers that ask again for a call that cannot be executed."""


def write_tags(turn: ScriptedTurn, number: int) -> InferenceResponse:
    """Write a turn as text with calls in tags, for the modes `validated` and `parsed`."""
    calls = [f"<tool_call>\n{_json(name=call.name, arguments=_arguments(call))}\n</tool_call>" for call in turn.calls]
    return _written(turn, number, "\n".join([*([turn.text] if turn.text else []), *calls]))


def write_structured(turn: ScriptedTurn, number: int) -> InferenceResponse:
    """Write a turn as the JSON of the mode `structured`; what is said beside calls is a thought."""
    items: list[dict[str, Any]] = [{"tool": call.name, "arguments": _arguments(call)} for call in turn.calls]
    if turn.text:
        items.insert(0, {"scratchpad" if turn.calls else "answer": turn.text})
    return _written(turn, number, _json(next=items))


def write_react_json(turn: ScriptedTurn, number: int) -> InferenceResponse:
    """Write a turn as a decision in JSON; what is said beside calls is a thought."""
    if not turn.calls:
        return _written(turn, number, _json(thought="", type="final", answer=turn.text))
    calls = [{"tool": call.name, "args": _arguments(call)} for call in turn.calls]
    made = {"calls": calls} if len(calls) > 1 else calls[0]
    return _written(turn, number, _json(thought=turn.text, type="tool", **made))


def write_react_text(turn: ScriptedTurn, number: int) -> InferenceResponse:
    """Write a turn as a decision in labeled lines; what is said beside calls is a thought."""
    if not turn.calls:
        return _written(turn, number, f"Thought: I know.\nFinal Answer: {turn.text}")
    lines = [f"Thought: {turn.text}"]
    for made in turn.calls:
        lines += [f"Action: {made.name}", f"Action Input: {made.arguments_json}"]
    return _written(turn, number, "\n".join(lines))


NOTATIONS: Final[Mapping[str, Notation]] = {
    "native": ScriptedTurn.response,
    "structured": write_structured,
    "validated": write_tags,
    "parsed": write_tags,
    "react-json": write_react_json,
    "react-text": write_react_text,
}
"""How a turn is written under each mode, by the name of the mode."""


def _arguments(call: ToolCall) -> Any:
    return thaw(call.arguments)


def _json(**entries: Any) -> str:
    return format_json(entries).decode()


def _written(turn: ScriptedTurn, number: int, text: str) -> InferenceResponse:
    return InferenceResponse((Text(text),), FinishReason.STOP, turn.usage, "scripted", f"response_{number}")
