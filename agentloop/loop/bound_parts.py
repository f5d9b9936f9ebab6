"""The parts of a loop as one execution uses them."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve, frozen

from agentloop.contracts.can_accept import CanAcceptOutputCheck, OutputCheck
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.can_witness import CanWitness
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.binding import bound_driver, bound_executor
from agentloop.loop.groups import discovered, hold_groups, must_discover
from agentloop.loop.loop_parts import LoopParts
from agentloop.values.agent_state import AgentState
from agentloop.values.stop import Continuation


@frozen(eq=False, kw_only=True)
class BoundParts:
    """The parts of a loop as one execution uses them.

    Attributes:
        driver: the driver, bound.
        interceptor: the stack, bound.
        tools: the tools.
        read_output: reads final answers that have a type; None for text.
        driver_of: binds the driver to other tools.
    """

    driver: CanUseTools
    interceptor: InterceptorStack
    tools: Tools
    read_output: OutputCheck | None
    driver_of: Callable[[Tools], CanUseTools]

    def check_output(self, state: AgentState, continuation: Continuation) -> None:
        """Refuse a final answer that has not the type that was asked for, whatever the driver makes of it.

        Raises:
            InvalidOutput: when it has not.
        """
        if self.read_output is not None and state.has_final_response and not continuation.requested:
            self.read_output(state.final_text)

    async def held(self, scope: ExecutionScope) -> BoundParts:
        """Hold the groups of the tools until the execution ends; return the parts with what these have discovered.

        Raises:
            asyncio.CancelledError: when cancelled meanwhile.
        """
        if not self.tools.groups:
            return self
        log = scope.log
        if log is not None and isinstance(log, CanWitness):  # nothing is started for those who only watch
            return evolve(self, driver=self.driver_of(log.known_tools(self.tools)))
        await hold_groups(self.tools.groups, scope.own)
        if not must_discover(self.tools):
            return self
        return evolve(self, driver=self.driver_of(await discovered(self.tools)))


def bind(loop: LoopParts, stack: InterceptorStack, events: CanHandleEvents, scope: ExecutionScope) -> BoundParts:
    """Bind the parts of a loop.

    Args:
        loop: the loop.
        stack: its interceptors, bound, and whatever else stands around them.
        events: the bus of the execution.
        scope: what the execution runs with.
    """
    check = None if loop.output_form is None else loop.output_form.read

    def driver_of(tools: Tools) -> CanUseTools:
        executor = bound_executor(loop.executor, tools, stack, events, scope)
        driver = bound_driver(
            loop.driver, tools, executor, loop.compiler, interceptor=stack, events=events, scope=scope
        )
        if check is not None and isinstance(driver, CanAcceptOutputCheck):
            driver = driver.with_output_check(check)
        return driver

    return BoundParts(
        driver=driver_of(loop.tools), interceptor=stack, tools=loop.tools, read_output=check, driver_of=driver_of
    )
