"""Labels of calls: who had a part in the decision to make a call, and in its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from attrs import evolve

from agentloop.contracts.can_accept import CanObserveReplay
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanLabelResult
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import Attempt, CallLayer, CallOutcome
from agentloop.values.batches import settled_calls
from agentloop.values.decisions import Answer, Approve, Decision, PendingCall
from agentloop.values.json import JsonValue, format_json
from agentloop.values.labels import CLEAN, UNKNOWN, ArgumentOrigin, CallOrigins, Label, SourceKind, Writer, foreign
from agentloop.values.origins import origins_of
from agentloop.values.records import outer_key
from agentloop.values.tool_calls import ToolCall, ToolExecution, ToolStatus

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
        self._endorsed: set[tuple[str, str, bytes]] = set()
        self._is_restored = False
        self._is_replay = isinstance(scope.log, CanObserveReplay)

    def open(self, call: Call, batch: Admission) -> CallLayer:
        """Label a call, and return what labels its outcome; a recorded outcome keeps the label that it has."""
        outer, said = outer_key(call.key), self._said.get(call.key)
        label = self._control(outer) if said is None else said.control
        recorded = None if self._scope.log is None else self._scope.log.recorded_call(call.key)
        outcome = None if recorded is None else recorded.execution
        if outcome is None:
            # A program that was suspended has received the results of the calls that it does not make again.
            settled = () if call.resumed is None else call.resumed.settled
            received = reduce(or_, [exchange.execution.origin for exchange in settled], label)
            self._programs.setdefault(call.key, received)
        else:
            self.add_result(outer, outcome.origin)
        said = CallOrigins(label) if said is None else said
        if outcome is not None:
            self._endorse(outcome.call, outcome.endorsed)
        elif isinstance(call.decision, Approve) and not said.control.is_foreign:
            self._endorse(call.call, call.decision.endorse)
        return _LabeledCall(call, batch, self, said, is_labeled=outcome is not None)

    def _endorse(self, call: ToolCall, names: Sequence[str]) -> None:
        """Count values of a call as those of the person who has decided about it."""
        self._endorsed.update(_values_of(call, names))

    def endorsed(self, batch: Admission) -> set[tuple[str, str, bytes]]:
        """Return the values that a person counts as his own: in this process, and before it in this execution."""
        if not self._is_restored:
            self._is_restored = True
            for step in batch.state.steps:
                for execution in settled_calls(step):
                    self._endorse(execution.call, execution.endorsed)
        return self._endorsed

    def _control(self, outer: str) -> Label:
        """Return who had a part in what a model, or the program that serves this call, has read."""
        control = self._scope.ledger.label
        control = UNKNOWN if control is None else control
        return self._programs.get(outer, control) if outer else control

    def note(self, key: str, origins: CallOrigins) -> None:
        """Note what a program says about a call that it is about to make."""
        self._said[key] = origins

    def label_of(self, call: Call, execution: ToolExecution, *, is_returned: bool) -> Label:
        """Return who had a part in an outcome, by the declarations of the tool.

        Args:
            call: the call.
            execution: the outcome, with the label that the tool, or whoever has kept the outcome, has given it.
            is_returned: whether the tool has returned it now. The keeper of another one, such as a cache, has to know its label.
        """
        if execution.status not in _WORDS_OF_TOOLS or isinstance(call.decision, Answer) or call.tool is None:
            return CLEAN
        tool, given = call.tool, execution.label
        source = foreign(execution.name, kind=SourceKind.TOOL, key=execution.key)
        if execution.succeeded and not is_returned and given is None:
            return source
        says_itself = isinstance(tool.tool, CanLabelResult)
        if self._is_replay and given is not None:
            # What the tool declares now, so that a lowered label differs from the record. An agent that failed has said nothing.
            rest = Label([each for each in given.sources if each not in source.sources])
            given = None if says_itself and not tool.calls_tools and given == source else rest
        if tool.calls_tools and given is None and is_returned:
            # What it returns is made of its code and of the results of its calls.
            return self._programs.get(call.key, UNKNOWN)
        if tool.calls_tools or says_itself:
            return source if given is None else given
        return (CLEAN if _is_own(execution, tool.spec.own) else source) | (given or CLEAN)

    def end(self, call: Call, label: Label) -> None:
        """Add the label of an outcome to what the program has received that made the call, if one did."""
        self._programs.pop(call.key, None)
        self.add_result(outer_key(call.key), label)

    def add_result(self, outer: str, label: Label) -> None:
        """Add what a program has received; without a program, nothing."""
        if outer:
            self._programs[outer] = self._programs.get(outer, UNKNOWN) | label


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
    __slots__ = ("_batch", "_call", "_decided", "_is_labeled", "_labeling", "_returned", "_said", "label")

    def __init__(
        self, call: Call, batch: Admission, labeling: Labeling, said: CallOrigins, *, is_labeled: bool
    ) -> None:
        self._call = call
        self._batch = batch
        self._labeling = labeling
        self._said = said.arguments
        self.label: Label = said.control
        self._is_labeled = is_labeled
        self._decided = call.call  # as it was shown to the person who decided about it
        self._returned: Label | None = None

    @property
    def wraps_tool(self) -> bool:
        """False: it looks at outcomes alone, so that the call needs no task for it."""
        return False

    @property
    def input_label(self) -> Label:  # type: ignore[override]  # an attribute of layers that know nothing
        """Who had a part in the call, its arguments included. A value that somebody has endorsed is still what another one wrote."""
        return reduce(or_, [each.label for each in self._unendorsed()], self.label)

    @property
    def origins(self) -> tuple[ArgumentOrigin, ...]:  # type: ignore[override]  # an attribute of layers that know nothing
        """Who had a part in each argument; a value that a person has endorsed is his, where the decision to make the call is clean."""
        said = self._unendorsed()
        if self.label.is_foreign or not any(each.label.is_foreign for each in said):
            return said
        known = self._labeling.endorsed(self._batch)
        return tuple(
            [
                ArgumentOrigin(each.argument, CLEAN, Writer.ENDORSED)
                if each.label.is_foreign and not known.isdisjoint(_values_of(self._call.call, [each.argument]))
                else each
                for each in said
            ]
        )

    def _unendorsed(self) -> tuple[ArgumentOrigin, ...]:
        """Return who had a part in each argument; one that was changed since the program made the call is of unknown origin."""
        call, made = self._call.call, self._call.requested
        if not self._said or made is None or made is call:
            return self._said
        before, after = made.arguments, call.arguments
        changed = {each.argument for each in self._said if after.get(each.argument) != before.get(each.argument)}
        return tuple([evolve(each, label=UNKNOWN) if each.argument in changed else each for each in self._said])

    def note_origins(self, key: str, origins: CallOrigins) -> None:
        """Note what a program says about a call that it is about to make."""
        self._labeling.note(key, origins)

    async def attempt(self, proceed: Attempt) -> ToolExecution:
        """Label what the tool has returned, so that whoever keeps it, such as a cache, keeps its label."""
        execution = await proceed()
        label = self._labeling.label_of(self._call, execution, is_returned=True)
        self._returned = label if self._returned is None else self._returned | label
        return _labeled(execution, label)

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        """Label the outcome before it is recorded; what interceptors have made of a result keeps its label."""
        if outcome.pending is not None:
            return evolve(outcome, pending=self._shown(outcome.pending))
        if outcome.execution is None or self._is_labeled:
            return outcome
        self._is_labeled = True
        is_returned = self._returned is not None
        label = self._labeling.label_of(self._call, outcome.execution, is_returned=is_returned) | (
            self._returned or CLEAN
        )
        self._labeling.end(self._call, label)
        execution = _labeled(outcome.execution, label)
        execution = _endorsed(execution, self._call.decision, self._decided)
        return outcome if execution is outcome.execution else evolve(outcome, execution=execution)

    def _shown(self, pending: PendingCall) -> PendingCall:
        """Return a call that waits with who wrote each of its arguments, for the person who decides about it."""
        if pending.waits_for or pending.origins:
            return pending
        state, arguments = self._batch.state, pending.call.arguments
        return evolve(pending, origins=tuple(origins_of(state, self.label, self.origins, arguments, key=pending.key)))


def _labeled(execution: ToolExecution, label: Label) -> ToolExecution:
    return execution if execution.label == label else evolve(execution, label=label)


def _endorsed(execution: ToolExecution, decision: Decision | None, shown: ToolCall) -> ToolExecution:
    """Return an outcome with the arguments that the decision endorses, and whose values are those that were shown."""
    names = decision.endorse if isinstance(decision, Approve) else ()
    before, after = shown.arguments, execution.call.arguments
    kept = tuple([name for name in names if name in after and after[name] == before.get(name)])
    return execution if execution.endorsed == kept else evolve(execution, endorsed=kept)


def _values_of(call: ToolCall, names: Iterable[str]) -> Iterator[tuple[str, str, bytes]]:
    """Return values of arguments, each with the names of the tool and of the argument, so that 1 is neither true nor 1.0."""
    arguments = call.arguments
    return ((call.name, name, format_json(arguments[name])) for name in names if name in arguments)
