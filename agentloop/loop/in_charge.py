"""The loop in charge of a conversation: the executed loop, or the one that it was handed over to.

Everything that depends on the loop in charge is bound here, whichever way an execution begins or continues: the driver, the tools, the
executor, the compiler, the interceptors, the bounds, the system prompt and the type of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError, ExecutionError
from agentloop.loop.binding import BoundParts, bind
from agentloop.loop.handoff import (
    ACCEPTED,
    OWNER,
    HandoffTool,
    handed_over_by,
    handoff_count,
    inferences_before_handoff,
    note_first,
    path_of,
    steps_before_handoff,
)
from agentloop.loop.parts import LoopParts, unwrapped
from agentloop.loop.settlement import with_typed_output
from agentloop.loop.tool_names import check_discovered_names, noted_references
from agentloop.loop.tool_policies import layers_after_handoff
from agentloop.values.batches import settled_calls
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState, with_agent_name
from agentloop.values.steps import AgentStep
from agentloop.values.system_prompts import initial_prompt, render_system_prompt
from agentloop.values.tool_calls import ToolExecution, ToolStatus


def begin_execution(root: LoopParts, state: AgentState) -> AgentState:
    """Return the state for a new execution, with the prompt and the response format of the loop in charge.

    Args:
        root: the executed loop.
        state: the conversation so far.
    """
    loop = find_loop_in_charge(root, state)
    if loop is None:  # the loop that it was handed over to does not exist any more, and the executed loop takes it back
        loop, state = root, state.with_extension(OWNER, None).with_system_prompt(initial_prompt(root.system_prompt))
    if loop is root:
        form = root.output_form
        state = state.with_output_type_format(None if form is None else form.response_format)
    state = with_agent_name(state, loop.name or handed_over_by(state))
    if not isinstance(loop.system_prompt, str):
        state = state.with_system_prompt(render_system_prompt(loop.system_prompt, state))
    return state


def read_answer(root: LoopParts, state: AgentState) -> AgentState:
    """Return a final state with its answer as an instance of the output type of the loop that gave it.

    Args:
        root: the executed loop.
        state: the final state, of this run or from a record.

    Raises:
        InvalidOutput: the answer of a completed execution does not match the type.
    """
    loop = find_loop_in_charge(root, state)
    return state if loop is None or loop.output_form is None else with_typed_output(state, loop.output_form.read)


def check_answer_type(root: LoopParts, state: AgentState) -> None:
    """Check that the loop that has answered has the output type of the executed loop, if that has one.

    Args:
        root: the executed loop.
        state: the state of a completed execution.

    Raises:
        ExecutionError: it has another one, or answers in text.
    """
    loop = find_loop_in_charge(root, state)
    if loop is None or root.output_form is None or loop.output_form == root.output_form:
        return
    wanted = root.output_form.response_format
    raise ExecutionError(
        state,
        f"execution {state.execution_id} has no answer of the type {'str' if wanted is None else wanted.name!r}: {handed_over_by(state)!r} "
        "handed the conversation over to a loop with another output type; the state of this error has its answer, as `execute` "
        "returns it",
    )


@frozen(eq=False, repr=False)
class LoopInCharge(ShownByField):
    """Binds the parts of the loop that the conversation is with, for one execution.

    The limits of the executed loop stay: its interceptors are the outer ones, and of two bounds the stricter one applies.

    Attributes:
        root: the executed loop.
        events: the bus of the execution.
        scope: what the execution runs with besides its state.
    """

    root: LoopParts
    events: CanHandleEvents
    scope: ExecutionScope

    def bind_current(self, state: AgentState) -> tuple[AgentState, BoundParts]:
        """Return the state and the bound parts with which the execution starts or resumes."""
        loop = find_loop_in_charge(self.root, state) or self.root
        # Each loop has models of its own, which have received the requests since the handoff.
        own, others = inferences_before_handoff(state)
        counts = max(self.scope.inference_count - own, 0), max(self.scope.other_inference_count - others, 0)
        if loop is not self.root:
            state = _with_response_format_of(loop, state)
        parts, step = self._bind(loop, counts, after=steps_before_handoff(state)), state.last_step
        accepted = None if step is None or step.open_turn is None else _find_accepted(step, parts.tools)
        if accepted is not None:  # the pending handoffs of a resumed step come too late
            note_first(self.scope, state, accepted[1].name)
        return state, parts

    def bind_next(self, state: AgentState, parts: BoundParts) -> tuple[AgentState, BoundParts, ToolExecution] | None:
        """Return the state and the bound parts after a handoff, with its call; None if the last step has none.

        Args:
            state: the state after the step.
            parts: the parts that took the step.

        Raises:
            ConfigurationError: the target of the handoff is not a loop.
        """
        step = state.last_step
        if step is None or step.errors or step.message is None:  # a failed or suspended step hands nothing over
            return None
        accepted = _find_accepted(step, parts.tools)
        if accepted is None:
            return None
        handoff, execution = accepted
        target = handoff.loop
        parts = self._bind(target, after=state.step_count)
        return _with_handoff(self.root, state, target, execution.name), parts, execution

    async def hold_groups(self, parts: BoundParts) -> BoundParts:
        """Hold the tool groups of a loop until the execution ends; return the parts with the tools that they discovered.

        Raises:
            ConfigurationError: a group has discovered a handoff, or a part of the loop names a tool that is not there.
            asyncio.CancelledError: if cancelled.
        """
        held = await parts.hold_groups()
        if held.tools is not parts.tools or held.loop is not self.root:  # otherwise they were checked before
            check_discovered_names(self.root, held.loop, held.tools, noted_references(self.scope.shared_resources))
        # The path to the current loop is followed before groups are held, and in replays, which hold none.
        name = next((name for name in held.tools.origins if _find_handoff(held.tools, name) is not None), None)
        if name is not None:
            raise ConfigurationError(
                f"the group {held.tools.origins[name]!r} has discovered the handoff {name!r}: a loop has to know its handoffs "
                "before an execution begins, so pass it in the list of tools, or in an Ensemble"
            )
        return held

    def _bind(self, loop: LoopParts, counts: tuple[int, int] = (0, 0), *, after: int) -> BoundParts:
        """Bind the parts of a loop.

        Args:
            loop: the loop.
            counts: how many requests its models have received.
            after: how many steps the execution had when it took over.
        """
        scope, (own, others) = self.scope.without_inferences(), counts
        scope = evolve(scope, bounds=self.root.bounds.within(loop.bounds))
        stack, (joining, replaced) = self.root.stack, layers_after_handoff(self.root, loop)
        if joining or replaced:
            stack = stack.with_layers(joining, without=replaced)
        stack = stack.bind(self.events, scope, joined=joining, after=after)
        if own or others:
            scope = evolve(scope, inference_count=own, other_inference_count=others)
        return bind(loop, stack, self.events, scope)


# --- the path of handoffs -------------------------------------------------------------------------------------------


def find_loop_in_charge(root: LoopParts, state: AgentState) -> LoopParts | None:
    """Return the loop that the conversation is with; None if the handoffs of `root` do not lead along the path of the state."""
    path = path_of(state)
    loops = list(_loops_along(path, root)) if path else [root]
    return loops[-1] if len(loops) == len(path) + 1 else None


def _with_handoff(root: LoopParts, state: AgentState, target: LoopParts, name: str) -> AgentState:
    """Return the state with the prompt and the response format of another loop, and with the path to it.

    Args:
        root: the executed loop.
        state: the state.
        target: the other loop.
        name: the name by which the tool that leads to it was called, which is the one that it is offered by.
    """
    path = (*path_of(state), name)
    for index, loop in enumerate(_loops_along(path[:-1], root)):
        if loop is target:  # back to a loop on the path: keep the path short
            path = path[:index]
            break
    extension = {
        "path": path,
        "execution": state.execution_id,
        "count": handoff_count(state) + 1,
        "inferences": state.inference_count,
        "steps": state.step_count,
    }
    if state.other_inference_count:
        extension["other_inferences"] = state.other_inference_count
    state = _with_response_format_of(
        target, state.with_system_prompt(render_system_prompt(target.system_prompt, state))
    )
    # A loop without a name has the name of the tool that leads to it, as an agent that serves a call has.
    return with_agent_name(state.with_extension(OWNER, extension), target.name or (path[-1] if path else ""))


def _with_response_format_of(loop: LoopParts, state: AgentState) -> AgentState:
    form = loop.output_form
    return state.with_response_format(None).with_output_type_format(None if form is None else form.response_format)


def _loops_along(path: tuple[str, ...], root: LoopParts) -> Iterator[LoopParts]:
    """Yield the loops along a path of handoffs, beginning with `root`, up to the first handoff that does not exist."""
    loop = root
    yield loop
    for name in path:
        handoff = _find_handoff(loop.tools, name)
        if handoff is None:
            return
        loop = handoff.loop
        yield loop


def _find_handoff(tools: Tools, name: str) -> HandoffTool | None:
    tool = tools.get(name)
    handoff = None if tool is None else unwrapped(tool)
    return handoff if isinstance(handoff, HandoffTool) else None


def _find_accepted(step: AgentStep, tools: Tools) -> tuple[HandoffTool, ToolExecution] | None:
    """Return the first handoff of a step that succeeded, with its call; None if there is none."""
    for execution in settled_calls(step):
        handoff = _find_handoff(tools, execution.name)
        # A person or an interceptor may have answered the call in place of the tool.
        if handoff is not None and execution.status is ToolStatus.SUCCEEDED and execution.value == ACCEPTED:
            return handoff, execution
    return None
