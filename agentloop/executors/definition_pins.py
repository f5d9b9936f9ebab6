"""Calls of tools whose definition has changed wait: what was approved or used before was another tool."""

from __future__ import annotations

from agentloop.contracts.tool import CanPinDefinition
from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import ToolDefinitionChanged
from agentloop.executors.batch import CallState
from agentloop.executors.call_layers import Admission, CallLayer, CanLayerCalls

_REDEFINED = "the definition of its tool has changed; look at the tool again before you approve the call"
_UNSEEN_DEFAULTS = "it runs with defaults that were not shown when it was decided; look at the call again"


class DefinitionPins(CanLayerCalls):
    """Suspends calls of changed tools, until a call of each was approved in this execution."""

    def __init__(self, *, has_definitions: bool) -> None:
        self._has_definitions = has_definitions
        self.accepted: set[str] = set()

    def open(self, call: CallState, batch: Admission) -> CallLayer | None:
        """Return what looks at the definition of the tool of a call; None where no program defines any."""
        if not self._has_definitions and call.admitted.decision is None:
            return None
        return _PinnedCall(self.accepted, call, batch)


class _PinnedCall(CallLayer):
    __slots__ = ("_accepted", "_batch", "_call")

    def __init__(self, accepted: set[str], call: CallState, batch: Admission) -> None:
        self._accepted = accepted
        self._call = call
        self._batch = batch

    async def admit(self) -> None:
        call = self._call.admitted
        if call.tool is None:
            return
        spec, known = call.tool.spec, call.definition
        is_replaced = known is not None and known != spec.definition
        is_unpinned = spec.definition != spec.pinned
        needs_decision = is_unpinned and call.decision is None and spec.name not in self._accepted
        if not call.is_committed and (is_replaced or needs_decision):
            before = known if is_replaced else spec.pinned
            batch = self._batch
            batch.suspend(self._call, _REDEFINED)
            details = (call.step_number, call.key, spec.name, before or "", spec.definition)
            await emit_at_step(batch.settings.events, ToolDefinitionChanged, batch.state, *details)
        elif call.decision is not None and call.has_unseen_defaults():
            self._batch.suspend(self._call, _UNSEEN_DEFAULTS)
        elif call.decision is not None and is_unpinned:
            self._accepted.add(spec.name)
            if isinstance(call.tool.tool, CanPinDefinition):
                call.tool.tool.accept_definition()
