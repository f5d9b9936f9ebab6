"""Suspends a call if its tool, or a default of the tool, differs from the one that the model or a person saw before."""

from __future__ import annotations

from agentloop.contracts.tool import CanPinDefinition
from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import ToolDefinitionChanged
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import CallLayer
from agentloop.executors.toolbox import ReadyTool
from agentloop.values.json import EMPTY_OBJECT, format_json
from agentloop.values.tool_calls import ToolSpec

_REDEFINED = "the definition of its tool has changed; look at the tool again before you approve the call"
_UNSEEN_DEFAULTS = "it runs with defaults that were not shown when it was decided; look at the call again"


class DefinitionPins(CanLayerCalls):
    """Suspends calls of changed tools, until a call of each was approved in this execution.

    Args:
        are_defined: whether any tool has a definition, now or when it was approved.
    """

    def __init__(self, *, are_defined: bool) -> None:
        self._are_defined = are_defined
        self._accepted: set[str] = set()

    def open(self, call: Call, batch: Admission) -> CallLayer | None:
        """Return what looks at the tool of a call; None if no tool has a definition, and nobody has decided about the call."""
        if call.decision is None and not self._are_defined:
            return None
        return _PinnedCall(self._accepted, call, batch)


class _PinnedCall(CallLayer):
    __slots__ = ("_accepted", "_batch", "_call")

    def __init__(self, accepted: set[str], call: Call, batch: Admission) -> None:
        self._accepted = accepted
        self._batch = batch
        self._call = call

    async def admit(self) -> None:
        """Suspend the call unless its tool is the one that was shown, or used before; accept a tool whose call was approved."""
        tool, decision = self._call.tool, self._call.decision
        if tool is None:
            return
        known = self._known_definition(tool.spec)
        if known is not None:
            await self._suspend(known, tool.spec)
        elif decision is not None and self._has_unseen_defaults():
            self._batch.suspend(self._call, _UNSEEN_DEFAULTS)
        elif decision is not None and tool.spec.definition != tool.spec.pinned:
            self._accept(tool)

    def _known_definition(self, spec: ToolSpec) -> str | None:
        """Return the definition that is known, if it is another one and nobody has decided about that yet; else None."""
        if self._call.is_committed:
            return None
        shown = self._batch.asked.definitions.get(self._call.key)
        if shown is not None and shown != spec.definition:
            return shown
        is_accepted = self._call.decision is not None or spec.name in self._accepted
        return None if is_accepted or spec.definition == spec.pinned else spec.pinned or ""

    async def _suspend(self, known: str, spec: ToolSpec) -> None:
        batch, call = self._batch, self._call
        batch.suspend(call, _REDEFINED)
        details = (call.step_number, call.key, spec.name, known, spec.definition)
        await emit_at_step(batch.runtime.events, ToolDefinitionChanged, batch.state, *details)

    def _has_unseen_defaults(self) -> bool:
        """Return whether the call would run with defaults that were not shown to the person who decided about it.

        A call that has started got its defaults then.
        """
        call = self._call
        if call.was_started:
            return False
        shown = self._batch.asked.defaults.get(call.key, EMPTY_OBJECT)
        # As text: to Python, 1 and true are equal.
        seen = {(path, format_json(value)) for path, value in shown.items()}
        return any((path, format_json(value)) not in seen for path, value in call.defaults.items())

    def _accept(self, tool: ReadyTool) -> None:
        self._accepted.add(tool.spec.name)
        if isinstance(tool.tool, CanPinDefinition):
            tool.tool.accept_definition()
