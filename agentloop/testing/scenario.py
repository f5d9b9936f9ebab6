"""Scripted decisions of a model, turn by turn, which any driver can be made to follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias

from attrs import evolve, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.scripted import ScenarioStep, ScriptedDriver
from agentloop.errors import ContractViolation, InvalidResponse
from agentloop.models.scripted import ScriptedInference, ScriptLine
from agentloop.testing.toys import toy_call
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceRequest, InferenceResponse, Usage
from agentloop.values.json import format_json, thaw
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_calls import ToolCall
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class ScriptedTurn(Value):
    """One decision of a model: tool calls, or a final answer.

    Attributes:
        text: the text of the response.
        calls: the tool calls; without any, the text is the final answer.
        usage: the tokens that the provider reports.
        finish: why the model stopped; None for the normal end.
        error: with what the request fails in place of a response; empty if it does not.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage(10, 5, 0, 0, 0)  # noqa: RUF009  # immutable
    finish: FinishReason | None = None
    error: str = ""

    def response(self, number: int) -> InferenceResponse:
        """Return the turn as a model's response with native tool calls."""
        text: list[ResponsePart] = [Text(self.text)] if self.text else []
        finish = FinishReason.TOOL_CALLS if self.calls else FinishReason.STOP
        return InferenceResponse((*text, *self.calls), finish, self.usage, "scripted", f"response_{number}")


_USAGE = Usage(10, 5, 0, 0, 0)

Notation: TypeAlias = Callable[[ScriptedTurn, int], InferenceResponse]
"""Writes a turn as a model's response, from the turn and its 0-based index."""


@frozen(eq=False, repr=False)
class Scenario(Value):
    """A scripted conversation that any driver can be made to follow: turns with tool calls, then a final answer.

    Attributes:
        question: the user's message.
        turns: the model's decisions, in order.
        wait: how many seconds the model takes for each.
    """

    question: str = "What now?"
    turns: tuple[ScriptedTurn, ...] = field(default=(), converter=tuple[ScriptedTurn, ...])
    wait: float = 0.0
    _models: list[ScenarioInference] = field(factory=list, init=False, eq=False, repr=False)
    _watched: list[WatchedInference] = field(factory=list, init=False, eq=False, repr=False)

    @property
    def requests(self) -> tuple[InferenceRequest, ...]:
        """What the models of the scenario, and those that it watches, were asked so far, by whatever way it reached them."""
        models: list[ScenarioInference | WatchedInference] = [*self._models, *self._watched]
        return tuple([request for model in models for request in model.requests])

    @property
    def requests_by_model(self) -> tuple[tuple[InferenceRequest, ...], ...]:
        """What each model of the scenario was asked so far, in order; without those that it watches."""
        return tuple([tuple(model.requests) for model in self._models])

    @property
    def watched_usages(self) -> tuple[Usage, ...]:
        """The tokens of each response of the models that the scenario watches."""
        return tuple([usage for model in self._watched for usage in model.usages])

    @property
    def has_models(self) -> bool:
        """Whether a driver asked for a model of the scenario, or for one that it watches."""
        return bool(self._models or self._watched)

    @property
    def is_overasked(self) -> bool:
        """Whether, in a single execution, a model of the scenario got more requests that differ than the scenario has decisions."""
        return any(len(model.decided) > len(model.lines) for model in self._models)

    def inference(self, notation: Notation = ScriptedTurn.response) -> ScriptedInference:
        """Return a model that follows the scenario: it decides once about each request, and answers an equal one in the same way.

        Args:
            notation: how the model writes its turns, one of `NOTATIONS`; native tool calls by default.
        """
        lines = [_script_line(turn, notation(turn, index)) for index, turn in enumerate(self.turns)]
        model = ScenarioInference(*lines, wait=self.wait)
        self._models.append(model)
        return model

    def watch(self, model: CanInfer) -> WatchedInference:
        """Return a further model of the driver, such as a planner, which a kit watches as it does that of the scenario.

            DriverKit(lambda scenario: PlanningDriver(scenario.inference(), planner=scenario.watch(Planner())))

        Args:
            model: the model. One that follows a script continues with it where an execution is resumed.
        """
        watched = WatchedInference(model)
        self._watched.append(watched)
        return watched

    def driver(self) -> ScriptedDriver:
        """Return a driver that follows the scenario without a model."""
        return ScriptedDriver(*map(_scenario_step, self.turns))


class ScenarioInference(ScriptedInference):
    """A scripted model that counts its own decisions alone when an execution is resumed, since a driver may have other models.

    A request that equals the one before it, as those of a vote or of a second attempt do, gets the same response.

    Args:
        *lines: the responses.
        usage: the token usage of responses that are not given as `InferenceResponse`.
        wait: how many seconds it takes for a response.

    Attributes:
        decided: the requests so far that differ from the one before, of all executions.
    """

    def __init__(self, *lines: ScriptLine, usage: Usage = _USAGE, wait: float = 0.0) -> None:
        super().__init__(*lines, usage=usage)
        self.wait = wait
        self.decided: list[InferenceRequest] = []
        self._latest: InferenceRequest | None = None

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that starts with the first turn, or continues after the turns that were used."""
        bound = super().with_execution_scope(scope)
        bound.wait, bound.decided = self.wait, self.decided
        if scope.inference_count and self.decided:
            bound._position = len(self.decided)  # noqa: SLF001  # of the base class
        return bound

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next decision, or the one about an equal request.

        Raises:
            ContractViolation: at the end of the scenario.
            InvalidResponse: the turn says that the request fails.
        """
        if request == self._latest:
            self._position -= 1
        else:
            self._latest = request
            self.decided.append(request)
        if self._position >= len(self.lines):
            self.requests.append(request)
            raise ContractViolation(overasked(len(self.lines)))
        if self.wait:
            await asyncio.sleep(self.wait)
        return await super().infer(request)


def overasked(decisions: int) -> str:
    """Return what is wrong with a driver that asks the model of a scenario with so many decisions once more."""
    return (
        f"the driver asked the scenario's model for more than its decisions (there {_are(decisions)}); for what else it asks, "
        "give it a model of its own by scenario.watch(…), and where it asks again because a call cannot be executed, pass "
        "scenarios=valid_scenarios()"
    )


def _are(decisions: int) -> str:
    return "is 1" if decisions == 1 else f"are {decisions}"


class WatchedInference(CanInfer, CanAcceptExecutionScope):
    """A model of a driver besides that of the scenario, and what it was asked.

    Args:
        model: the model.

    Attributes:
        requests: the requests so far, of all executions.
        usages: the tokens of the responses so far.
    """

    def __init__(self, model: CanInfer) -> None:
        self._model = model
        self.requests: list[InferenceRequest] = []
        self.usages: list[Usage] = []

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy of which the model is bound to an execution."""
        bound = type(self)(self._model)
        if isinstance(self._model, CanAcceptExecutionScope):
            # Where a driver has several further models, each continues with its own script.
            count = len(self.requests) if scope.inference_count and self.requests else scope.inference_count
            bound._model = self._model.with_execution_scope(evolve(scope, inference_count=count))  # noqa: SLF001  # of this class
        # Shared, so that a kit finds in one place what all executions asked.
        bound.requests, bound.usages = self.requests, self.usages
        return bound

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Note the request, and return the response of the model."""
        self.requests.append(request)
        response = await self._model.infer(request)
        self.usages.append(response.usage)
        return response

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Note the request, and yield what the model streams."""
        self.requests.append(request)
        async for item in self._model.stream(request):
            if isinstance(item, InferenceResponse):
                self.usages.append(item.usage)
            yield item

    def __repr__(self) -> str:
        return f"WatchedInference({self._model!r})"


def _script_line(turn: ScriptedTurn, response: InferenceResponse) -> ScriptLine:
    """Return what the model of a scenario does at a turn, whose normal response is this one."""
    if turn.error:
        return InvalidResponse(turn.error)
    return response if turn.finish is None else evolve(response, finish_reason=turn.finish)


def _scenario_step(turn: ScriptedTurn) -> ScenarioStep:
    if not turn.calls:
        return ScenarioStep.final(turn.text, usage=turn.usage)
    calls = [(call.name, call.arguments) for call in turn.calls]
    return ScenarioStep.tool_calls(*calls, text=turn.text, usage=turn.usage)


# How models write turns.


def write_tags(turn: ScriptedTurn, index: int) -> InferenceResponse:
    """Write a turn as text with calls in tags, for the modes `validated` and `parsed`."""
    calls = [
        f"<tool_call>\n{_json(name=call.name, arguments=thaw(call.arguments))}\n</tool_call>" for call in turn.calls
    ]
    # Calls among other text may not run, so that the text next to calls is written as reasoning.
    lead = f"<think>{turn.text}</think>" if turn.text and calls else turn.text
    return _text_response(turn, index, "\n".join([*([lead] if lead else []), *calls]))


def write_structured(turn: ScriptedTurn, index: int) -> InferenceResponse:
    """Write a turn as the JSON of the mode `structured`. Text next to calls goes into the scratchpad."""
    items: list[dict[str, Any]] = [{"tool": call.name, "arguments": thaw(call.arguments)} for call in turn.calls]
    if turn.text:
        items.insert(0, {"scratchpad" if turn.calls else "answer": turn.text})
    return _text_response(turn, index, _json(next=items))


def write_react_json(turn: ScriptedTurn, index: int) -> InferenceResponse:
    """Write a turn as a ReAct decision in JSON. Text next to calls is the thought."""
    if not turn.calls:
        return _text_response(turn, index, _json(thought="", type="final", answer=turn.text))
    calls: list[dict[str, Any]] = [{"tool": call.name, "args": thaw(call.arguments)} for call in turn.calls]
    fields = {"calls": calls} if len(calls) > 1 else calls[0]
    return _text_response(turn, index, _json(thought=turn.text, type="tool", **fields))


def write_react_text(turn: ScriptedTurn, index: int) -> InferenceResponse:
    """Write a turn as a ReAct decision in labeled lines. Text next to calls is the thought."""
    if not turn.calls:
        return _text_response(turn, index, f"Thought: I know.\nFinal Answer: {turn.text}")
    lines = [f"Thought: {turn.text}"]
    for call in turn.calls:
        lines += [f"Action: {call.name}", f"Action Input: {call.arguments_json}"]
    return _text_response(turn, index, "\n".join(lines))


NOTATIONS: Final[Mapping[str, Notation]] = {
    "native": ScriptedTurn.response,
    "structured": write_structured,
    "validated": write_tags,
    "parsed": write_tags,
    "react-json": write_react_json,
    "react-text": write_react_text,
}
"""How a model writes its turns in each mode, by the name of the mode."""


def _json(**entries: Any) -> str:
    return format_json(entries).decode()


def _text_response(turn: ScriptedTurn, index: int, text: str) -> InferenceResponse:
    return InferenceResponse((Text(text),), FinishReason.STOP, turn.usage, "scripted", f"response_{index}")


# Strategies.

_USAGES = st.builds(
    Usage,
    st.one_of(st.none(), st.integers(0, 1000)),
    st.integers(0, 1000),
    st.one_of(st.none(), st.integers(0, 100)),
    st.integers(0, 10),
    st.integers(0, 10),
)
_TEXTS = st.sampled_from(["", "Let me look.", "One moment…"])
_ANSWERS = st.builds(ScriptedTurn, st.sampled_from(["done", "the answer is 42"]), st.just(()), _USAGES)


def _scenarios(names: Sequence[str], values: st.SearchStrategy[int]) -> st.SearchStrategy[Scenario]:
    """Return scenarios of up to four turns with one to three calls each, and an answer."""
    calls = st.builds(
        toy_call,
        st.sampled_from(names),
        values,
        id=st.sampled_from(["", "call_1", "call_2"]),
        seconds=st.sampled_from([0, 1, 2]),
    )
    return _scenarios_of(calls)


def scenarios_of(calls: Sequence[ToolCall]) -> st.SearchStrategy[Scenario]:
    """Return scenarios with these calls, such as those of tools that are no toys."""
    return _scenarios_of(st.sampled_from(calls))


def _scenarios_of(calls: st.SearchStrategy[ToolCall]) -> st.SearchStrategy[Scenario]:
    turns = st.builds(ScriptedTurn, _TEXTS, st.lists(calls, min_size=1, max_size=3).map(tuple), _USAGES)
    return st.builds(lambda acting, answer: Scenario(turns=(*acting, answer)), st.lists(turns, max_size=4), _ANSWERS)


# Repeated names are drawn more often; the tool `ekko` does not exist, and -1 is not a valid value.
SCENARIOS = _scenarios(
    ["echo", "echo", "whoami", "fail", "alone", "keyed", "ekko"], st.one_of(st.integers(0, 30), st.integers(-1, 1))
)
"""Scenarios of up to four turns with valid and invalid calls of toy tools, and an answer."""


def valid_scenarios(*more: str) -> st.SearchStrategy[Scenario]:
    """Return scenarios in which every call can be executed, whatever its outcome.

    Args:
        *more: the names of further toy tools to call, such as `stop`.
    """
    return _scenarios(["echo", "echo", "whoami", "fail", "broken", "alone", "keyed", *more], st.integers(0, 30))


def waiting_calls(*names: str) -> st.SearchStrategy[list[ToolCall]]:
    """Return batches of calls of which some wait for decisions; no two calls have the same or successive values.

    Args:
        *names: the names of toy tools.
    """
    drawn = st.lists(st.tuples(st.sampled_from(names), st.booleans()), min_size=1, max_size=6)
    return drawn.map(
        lambda calls: [toy_call(name, 5 * index + 2 * (not waits)) for index, (name, waits) in enumerate(calls)]
    )


def waiting_scenarios() -> st.SearchStrategy[Scenario]:
    """Return scenarios with calls that wait for decisions, all of which can be executed."""

    def split(calls: list[ToolCall], size: int) -> Scenario:
        turns = [ScriptedTurn(calls=tuple(calls[at : at + size])) for at in range(0, len(calls), size)]
        return Scenario(turns=(*turns, ScriptedTurn("done")))

    return st.builds(split, waiting_calls("echo", "keyed", "defer"), st.integers(1, 3))
