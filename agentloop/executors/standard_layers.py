"""The features over the calls of an execution: which of them it needs, and in which order."""

from __future__ import annotations

from attrs import frozen

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanCallTools, CanContinueCall
from agentloop.executors.admission import CanLayerCalls
from agentloop.executors.toolbox import Toolbox
from agentloop.interception.stack import InterceptorStack
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse

_POINTS = frozenset({BeforeToolUse.point_name, AroundToolUse.point_name, AfterToolUse.point_name})


@frozen(eq=False)
class Features:
    """The features over the calls of an execution, outermost first.

    Attributes:
        plain: those that calls need about which nobody has decided.
        decided: those that a batch needs with calls about which somebody has decided.
    """

    plain: tuple[CanLayerCalls, ...]
    decided: tuple[CanLayerCalls, ...]

    def with_innermost(self, feature: CanLayerCalls) -> Features:
        """Return them with one more."""
        return Features((*self.plain, feature), (*self.decided, feature))


def standard_features(toolbox: Toolbox, scope: ExecutionScope, stack: InterceptorStack) -> Features:
    """Return the features that an execution needs with these tools and interceptors.

    The order has reasons. A call that is recorded runs nothing, so the journal is outside of everything else. A recorded outcome
    wins over a call that is left to another process, so fencing is inside of the journal. The word of a person is the last, so
    decisions come before pins, and pins before the interceptors, which see only calls that may run.
    """
    outside, inside = _around_admission(toolbox, scope, stack)
    from agentloop.executors.definition_pins import DefinitionPins

    pins = DefinitionPins(toolbox.tools)
    from agentloop.executors.approval import Approval

    plain = (*outside, pins, *inside) if pins.are_defined else (*outside, *inside)
    return Features(plain, (*outside, Approval(), pins, *inside))


def _around_admission(
    toolbox: Toolbox, scope: ExecutionScope, stack: InterceptorStack
) -> tuple[list[CanLayerCalls], list[CanLayerCalls]]:
    """Return what is outside of decisions and pins, and what is inside of them."""
    outside: list[CanLayerCalls] = []
    inside: list[CanLayerCalls] = []
    tools, log = toolbox.tools, scope.log
    if log is not None:
        from agentloop.executors.journaled_call import JournalLayer

        outside.append(JournalLayer(log, is_provisional=AfterToolUse.point_name in stack.points))
    if log is not None or any(isinstance(tool, CanContinueCall) for tool in tools):
        from agentloop.executors.fencing import Fencing

        outside.append(Fencing())
    if any(isinstance(tool, CanCallTools) for tool in tools):
        from agentloop.executors.program_calls import ProgramCalls

        inside.append(ProgramCalls(log))
    if not _POINTS.isdisjoint(stack.points):
        from agentloop.executors.intercepted_call import Interception

        inside.append(Interception(stack))
    return outside, inside
