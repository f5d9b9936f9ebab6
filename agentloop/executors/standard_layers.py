"""The features over the calls of an execution: which of them it needs, and in which order."""

from __future__ import annotations

from functools import cached_property

from attrs import field, frozen

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanCallTools, CanContinueCall
from agentloop.executors.admission import CanLayerCalls
from agentloop.executors.toolbox import Toolbox
from agentloop.interception.stack import InterceptorStack
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse

_POINTS = frozenset({BeforeToolUse.point_name, AroundToolUse.point_name, AfterToolUse.point_name})


@frozen(eq=False)
class Features:
    """The features over the calls of an execution.

    Attributes:
        outside: the features outside of approval and pins, outermost first.
        pins: suspends calls of tools that have changed, in each batch; None if no tool has a definition.
        inside: the features inside of approval and pins, outermost first.
        plain: all features, outermost first, that a batch needs if nobody has decided about its calls.
    """

    outside: tuple[CanLayerCalls, ...]
    pins: CanLayerCalls | None
    inside: tuple[CanLayerCalls, ...]
    plain: tuple[CanLayerCalls, ...] = field(init=False)

    @plain.default
    def _without_decisions(self) -> tuple[CanLayerCalls, ...]:
        return (*self.outside, *self.inside) if self.pins is None else (*self.outside, self.pins, *self.inside)

    @cached_property
    def decided(self) -> tuple[CanLayerCalls, ...]:
        """The features, outermost first, that a batch needs with decisions about its calls."""
        from agentloop.executors.approval import Approval
        from agentloop.executors.definition_pins import DefinitionPins

        return (*self.outside, Approval(), self.pins or DefinitionPins(are_defined=False), *self.inside)


def standard_features(toolbox: Toolbox, scope: ExecutionScope, stack: InterceptorStack) -> Features:
    """Return the features that an execution needs with these tools and interceptors.

    The order has reasons. An outcome is recorded with its label, so labels are outside of the journal. A call that is
    recorded runs nothing, so the journal is outside of all that runs. A recorded outcome wins over a call that is left
    to another process, so fencing is inside of the journal. A call that a person has denied needs no check, so
    `decided` has approval outside of pins. Interceptors see only calls that may run, so pins are outside of them: a
    call of a changed tool waits before an interceptor asks for its approval. A tool that was started early is used
    where the tool itself would be, inside of everything else.
    """
    outside: list[CanLayerCalls] = []
    inside: list[CanLayerCalls] = []
    pins: CanLayerCalls | None = None
    log, tools = scope.log, toolbox.tools
    calls_tools = continues_calls = False
    for tool in tools:
        calls_tools |= isinstance(tool, CanCallTools)
        continues_calls |= isinstance(tool, CanContinueCall)
    if scope.labels:
        from agentloop.executors.labeled_calls import Labeling

        outside.append(Labeling(scope))
    if log is not None:
        from agentloop.executors.journaled_call import JournalLayer

        outside.append(JournalLayer(log, is_provisional=AfterToolUse.point_name in stack.points))
    if log is not None or continues_calls:
        from agentloop.executors.fencing import Fencing

        outside.append(Fencing())
    if any(spec.definition or spec.pinned for spec in tools.specs):
        from agentloop.executors.definition_pins import DefinitionPins

        pins = DefinitionPins(are_defined=True)
    if calls_tools:
        from agentloop.executors.program_calls import ProgramCalls

        inside.append(ProgramCalls(log))
    if not _POINTS.isdisjoint(stack.points):
        from agentloop.executors.intercepted_call import Interception

        inside.append(Interception(stack))
    return Features(tuple(outside), pins, tuple(inside))
