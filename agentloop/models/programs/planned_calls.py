"""The calls of a planned program, between the marks of its values and the labels of the kernel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from agentloop.contracts.tool import InnerCalls
from agentloop.models.programs.labeled_values import CLEAN, Marks, Part, PlannedCall, ResultMarks
from agentloop.models.programs.program import FunctionResult
from agentloop.models.programs.signatures import function_names, parameter_names
from agentloop.values.json import format_json
from agentloop.values.labels import CLEAN as CLEAN_LABEL
from agentloop.values.labels import UNKNOWN, ArgumentOrigin, CallOrigins, Label, SourceKind, foreign
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolSpec

_FOREIGN_PARTS = frozenset({Part.WORDS, Part.ANSWER})
"""The parts that make an argument foreign. A name is one of the service, and what the program picks follows the rule of its writer."""
_CLEAN = ResultMarks(CLEAN)


@frozen
class PlannedResult:
    """The result of a call, and what it is made of."""

    result: FunctionResult
    declared: ResultMarks


CallPlanned: TypeAlias = Callable[[Sequence[PlannedCall]], Awaitable[Sequence[PlannedResult]]]
"""Calls functions for which a planned program waits, all at once, and returns their results in the same order."""


class PlannedCalls:
    """Makes the calls of one program.

    Args:
        inner: makes them.
        control: who had a part in the decision to run the program; None where nothing is labeled.
    """

    def __init__(self, inner: InnerCalls, control: Label | None) -> None:
        self._inner = inner
        self._control = UNKNOWN if control is None else control
        self._sources: list[Label] = []
        functions = function_names(inner.specs)
        self._specs: Mapping[str, ToolSpec] = {functions[spec.name]: spec for spec in inner.specs}
        self.functions: Mapping[str, Sequence[str]] = {
            name: parameter_names(spec) for name, spec in self._specs.items()
        }

    async def execute(self, calls: Sequence[PlannedCall]) -> Sequence[PlannedResult]:
        """Execute calls of the program as one batch.

        Raises:
            Exception: whatever ends the tool.
        """
        specs = [self._specs[call.name] for call in calls]
        requested = [
            ToolCall("", spec.name, format_json(call.arguments).decode())
            for spec, call in zip(specs, calls, strict=True)
        ]
        origins = [self._origins(spec, call) for spec, call in zip(specs, calls, strict=True)]
        made = await self._inner.execute(requested, origins=origins)
        return [self._result(spec, execution) for spec, execution in zip(specs, made, strict=True)]

    def label_of(self, marks: Marks) -> Label:
        """Return the label of what the program shows."""
        return self._control | self._join(marks)

    def _origins(self, spec: ToolSpec, call: PlannedCall) -> CallOrigins:
        control = self._control | self._join(call.control)
        return CallOrigins(
            control,
            tuple(
                [
                    ArgumentOrigin(name, self._label_of_argument(spec, name, marks, control))
                    for name, marks in call.marks.items()
                ]
            ),
        )

    def _label_of_argument(self, spec: ToolSpec, name: str, marks: Marks, control: Label) -> Label:
        if (
            spec.name in self._inner.agents
        ):  # an agent reads its task: a name in it can instruct the agent, and so can a pick
            return self._join(marks)
        label = self._join([mark for mark in marks if mark[1] in _FOREIGN_PARTS])
        is_quoted = len(label.sources) == 1 and all(part is not Part.ANSWER for _, part in marks)
        if is_quoted and not control.is_foreign and spec.effect is Effect.PURE and spec.may_carry(name):
            return CLEAN_LABEL  # an address out of one text tells its writer nothing that the text did not say
        return label

    def _join(self, marks: Marks | Sequence[tuple[int, Part]]) -> Label:
        label = CLEAN_LABEL
        for number in sorted({number for number, _ in marks}):
            label |= self._sources[number]
        return label

    def _result(self, spec: ToolSpec, execution: ToolExecution) -> PlannedResult:
        failed = "" if execution.succeeded else f"{execution.name}: {execution.text}"
        result = FunctionResult(error=failed) if failed else FunctionResult(execution.value)
        origin = execution.origin
        if not origin.is_foreign:
            return PlannedResult(result, _CLEAN)
        self._sources.append(origin)
        number = len(self._sources) - 1
        if spec.name in self._inner.agents:
            return PlannedResult(result, ResultMarks(frozenset([(number, Part.ANSWER)])))
        marks = frozenset([(number, Part.WORDS)])
        if failed or origin != foreign(execution.name, kind=SourceKind.TOOL, key=execution.key):
            return PlannedResult(
                result, ResultMarks(marks)
            )  # the tool, or an interceptor, has said more about the result
        return PlannedResult(result, ResultMarks(marks, frozenset(spec.own), frozenset(spec.identifiers)))
