"""Labels of calls: who had a part in the decision to make a call, and in its outcome."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanLabelResult
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import CallLayer, CallOutcome
from agentloop.values.decisions import Answer
from agentloop.values.json import JsonValue
from agentloop.values.labels import CLEAN, UNKNOWN, ArgumentOrigin, CallOrigins, Label, SourceKind, foreign
from agentloop.values.records import outer_key
from agentloop.values.tool_calls import ToolExecution, ToolStatus

_WORDS_OF_TOOLS = frozenset({ToolStatus.SUCCEEDED, ToolStatus.FAILED})
"""How calls end whose text the tool has written; the executor writes the others."""


class Labeling(CanLayerCalls):
    """Labels the calls of an execution.

    A call that a model makes has the label of what the model had read. A call that a program makes has the label of the call that
    runs the program, with those of the results that the program has received before.

    Args:
        scope: the scope of the execution.
    """

    def __init__(self, scope: ExecutionScope) -> None:
        self._scope = scope
        self._programs: dict[str, Label] = {}
        self._said: dict[str, CallOrigins] = {}

    def open(self, call: Call, batch: Admission) -> CallLayer:  # noqa: ARG002  # the batch has no part in it
        """Label a call, and return what labels its outcome; a recorded outcome keeps the label that it has."""
        outer, said = outer_key(call.key), self._said.get(call.key)
        label = self._control(outer) if said is None else said.control
        recorded = None if self._scope.log is None else self._scope.log.recorded_call(call.key)
        outcome = None if recorded is None else recorded.execution
        if outcome is None:
            self._programs.setdefault(call.key, label)
        else:
            self.add_result(outer, outcome.origin)
        return _LabeledCall(call, self, CallOrigins(label) if said is None else said, is_labeled=outcome is not None)

    def _control(self, outer: str) -> Label:
        """Return who had a part in what a model, or the program that serves this call, has read."""
        control = self._scope.ledger.label
        control = UNKNOWN if control is None else control
        return self._programs.get(outer, control) if outer else control

    def note(self, key: str, origins: CallOrigins) -> None:
        """Note what a program says about a call that it is about to make."""
        self._said[key] = origins

    def label(self, call: Call, execution: ToolExecution) -> ToolExecution:
        """Return an outcome with its label."""
        label = self._label_of(call, execution, self._programs.pop(call.key, UNKNOWN))
        self.add_result(outer_key(call.key), label)
        return execution if execution.label == label else evolve(execution, label=label)

    def add_result(self, outer: str, label: Label) -> None:
        """Add what a program has received; without a program, nothing."""
        if outer:
            self._programs[outer] = self._programs.get(outer, UNKNOWN) | label

    @staticmethod
    def _label_of(call: Call, execution: ToolExecution, received: Label) -> Label:
        if execution.status not in _WORDS_OF_TOOLS or isinstance(call.decision, Answer) or call.tool is None:
            return CLEAN
        tool = call.tool
        source = foreign(execution.name, kind=SourceKind.TOOL, key=execution.key)
        if isinstance(tool.tool, CanLabelResult):
            return execution.label or (received if tool.calls_tools else source)
        if tool.calls_tools:  # what it returns is made of its code and of the results of its calls
            return received
        return (CLEAN if _is_own(execution, tool.spec.own) else source) | (execution.label or CLEAN)


def _is_own(execution: ToolExecution, own: tuple[str, ...]) -> bool:
    """Return whether a service vouches for all words in an outcome."""
    if "*" in own:
        return True
    is_shown_whole = execution.content is None or execution.uncut is not None
    return bool(own) and execution.succeeded and is_shown_whole and _has_own_leaves(execution.value, own, "")


def _has_own_leaves(value: JsonValue, own: tuple[str, ...], name: str) -> bool:
    if isinstance(value, Mapping):
        return all(_has_own_leaves(item, own, key) for key, item in value.items())
    if isinstance(value, tuple):
        return all(_has_own_leaves(item, own, name) for item in value)
    return value is None or isinstance(value, bool) or name in own


class _LabeledCall(CallLayer):
    __slots__ = ("_call", "_is_labeled", "_labeling", "_said", "label")

    def __init__(self, call: Call, labeling: Labeling, said: CallOrigins, *, is_labeled: bool) -> None:
        self._call = call
        self._labeling = labeling
        self._said = said.arguments
        self.label = said.control
        self._is_labeled = is_labeled

    @property
    def origins(self) -> tuple[ArgumentOrigin, ...]:  # type: ignore[override]  # an attribute of layers that know nothing
        """Who had a part in each argument; one that was changed since the program made the call is of unknown origin."""
        call, made = self._call.call, self._call.requested
        if not self._said or made is None or made is call:
            return self._said
        before, after = made.arguments, call.arguments
        changed = {each.argument for each in self._said if after.get(each.argument) != before.get(each.argument)}
        return tuple([evolve(each, label=UNKNOWN) if each.argument in changed else each for each in self._said])

    @property
    def passed(self) -> Label | None:  # type: ignore[override]  # the same
        """Who had a part in the decision to make the call, or in an argument."""
        label = CLEAN if self.label is None else self.label
        for each in self.origins:
            label |= each.label
        return label

    def note_origins(self, key: str, origins: CallOrigins) -> None:
        """Note what a program says about a call that it is about to make."""
        self._labeling.note(key, origins)

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        """Label the outcome before it is recorded."""
        if outcome.execution is None or self._is_labeled:
            return outcome
        self._is_labeled = True
        execution = self._labeling.label(self._call, outcome.execution)
        return outcome if execution is outcome.execution else evolve(outcome, execution=execution)
