"""An execution as something that can be played again: what was answered, and what came of every call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision
from agentloop.values.frozen_dict import FrozenDict
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_value import JsonValue, freeze
from agentloop.values.message import Message
from agentloop.values.pending_call import PendingCall
from agentloop.values.stop import StopSignal
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ContentPart, ErrorInfo, ToolStatus
from agentloop.values.tool_spec import ToolSpec
from agentloop.values.value import Value

RecordedLine: TypeAlias = InferenceResponse | ErrorInfo
"""What a step began with: the model's answer, or why there was none."""


def _as_tuple(items: Iterable[Any] | None) -> tuple[Any, ...] | None:
    return None if items is None else tuple(items)


def _as_table(entries: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return FrozenDict(entries)


@frozen(eq=False, repr=False, kw_only=True)
class Outcome(Value):
    """What came of a call.

    Attributes:
        value: what the tool returned.
        status: how it ended.
        content: what the model was shown instead of the value; None for the value.
        error: what went wrong; None when nothing did.
        may_have_run: whether an effect could not be excluded although it did not succeed.
        ran: the call as it ran, where that does not follow from the model's call and the decisions; else None.
        waited: how it waited for decisions, one after the other.
        forced: whether neither a tool nor a rule can bring about this end, so that it is put in place of another.
    """

    value: JsonValue = field(default=None, converter=freeze)
    status: ToolStatus = field(default=ToolStatus.SUCCEEDED, converter=ToolStatus)
    content: tuple[ContentPart, ...] | None = field(default=None, converter=_as_tuple)
    error: ErrorInfo | None = None
    may_have_run: bool = False
    ran: ToolCall | None = None
    waited: tuple[PendingCall, ...] = field(default=(), converter=_as_tuple)
    forced: bool = False


@frozen(eq=False, repr=False, kw_only=True)
class Recording(Value):
    """An execution that can be played again, by `agentloop.testing.play`, without its model, its tools and its journal.

    Attributes:
        execution_id: the execution.
        state: what it began with.
        script: what each step began with, in order.
        tools: what the model could call.
        outcomes: what came of each call, by key.
        decisions: what was decided, each time that it was resumed, by key.
        messages: what was sent to it, by the number of the step that took it.
        failed: the steps that went wrong after the model had answered, and why.
        recovered: the steps that went wrong, and after which it went on.
        continued: the steps after which it went on although the model had answered.
        stops: why it stopped, where that does not follow from the above.
    """

    execution_id: str
    state: AgentState
    script: tuple[RecordedLine, ...] = field(converter=_as_tuple)
    tools: tuple[ToolSpec, ...] = field(default=(), converter=_as_tuple)
    outcomes: Mapping[str, Outcome] = field(factory=dict, converter=_as_table)
    decisions: tuple[Mapping[str, Decision], ...] = field(default=(), converter=_as_tuple)
    messages: Mapping[int, tuple[Message, ...]] = field(factory=dict, converter=_as_table)
    failed: Mapping[int, ErrorInfo] = field(factory=dict, converter=_as_table)
    recovered: tuple[int, ...] = field(default=(), converter=_as_tuple)
    continued: tuple[int, ...] = field(default=(), converter=_as_tuple)
    stops: tuple[StopSignal, ...] = field(default=(), converter=_as_tuple)
