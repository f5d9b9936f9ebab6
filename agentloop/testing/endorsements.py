"""The cases of law 62: what a person has endorsed runs again unasked, and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, Self

from attrs import evolve, field, frozen

from agentloop.contracts.tool import CanCallTools, InnerCalls, Tool, ToolLike
from agentloop.errors import DecisionError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.kit import require
from agentloop.values.decisions import Approve, PendingCall, approve
from agentloop.values.json import JsonObject, format_json, freeze_object
from agentloop.values.labels import CLEAN, ArgumentOrigin, CallOrigins, Label, foreign
from agentloop.values.serialization import from_json, to_json
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolCall

_STRANGER: Final = foreign("a stranger")
_BOB, _EVE = "bob@x.test", "eve@x.test"


@frozen
class _Made:
    """A call that a program makes, with the arguments that a stranger has written, and whether he has decided about it."""

    name: str
    arguments: Mapping[str, object]
    foreign: tuple[str, ...]
    control: Label = CLEAN

    @property
    def call(self) -> ToolCall:
        """The call."""
        return ToolCall("", self.name, format_json(self.arguments).decode())

    @property
    def origins(self) -> CallOrigins:
        """What the program says about it."""
        labels = {name: _STRANGER if name in self.foreign else CLEAN for name in self.arguments}
        return CallOrigins(self.control, tuple([ArgumentOrigin(name, label) for name, label in labels.items()]))


@frozen(kw_only=True)
class _Plan(Tool, CanCallTools):
    """Makes two calls, one after the other."""

    calls: tuple[_Made, ...]
    name: str = "plan"
    description: str = "Make the calls."
    parameters: JsonObject = field(factory=lambda: freeze_object({"type": "object", "properties": {}}))
    effect: Effect = Effect.IDEMPOTENT
    _inner: InnerCalls | None = field(default=None, alias="inner", repr=False, eq=False)

    def with_inner_calls(self, inner: InnerCalls) -> Self:
        """Return a copy that makes its calls by these."""
        return evolve(self, inner=inner)

    async def use(self, *_: Any) -> str:
        """Make the calls."""
        assert self._inner is not None  # noqa: S101  # an executor has bound it
        for made in self.calls:
            await self._inner.execute([made.call], origins=[made.origins])
        self._inner.check_complete()
        return "done"


_FIRST = _Made("send", {"to": _EVE, "body": "hi"}, ("to",))
_LATER: Mapping[str, _Made] = {
    "another value": _Made("send", {"to": f"{_EVE}x"}, ("to",)),
    "another value that a stranger has written": _Made("send", {"to": _BOB}, ("to",)),
    "another tool": _Made("erase", {"id": _EVE}, ("id",)),
    "a call that a stranger has decided about": _Made("send", {"to": _EVE}, ("to",), _STRANGER),
}
"""Calls that wait although a value was endorsed before."""


class CanMakeLoops(Protocol):
    """What the cases need of a kit of labels."""

    def looped(self, *tools: ToolLike) -> tuple[AgentLoop[Any], Sequence[object]]:
        """Return a loop whose model calls the tool `plan` in each execution, and the list of effects that have run."""


async def check_endorsed(kit: CanMakeLoops) -> None:
    """Check that the same value of the same argument counts as the person's, in this process and in another one."""
    for is_stored in (False, True):
        calls = (_FIRST, evolve(_FIRST, arguments={"to": _EVE, "body": "again"}))
        loop, done = kit.looped(_Plan(calls=calls))
        state = await _decided(loop, await loop.execute("Go."), is_stored=is_stored)
        require(62, not state.pending and len(done) == len(calls), f"an endorsed value was asked about again: {done}")


async def check_not_endorsed(kit: CanMakeLoops, later: str) -> None:
    """Check that a call waits which the decision says nothing about."""
    loop, done = kit.looped(_Plan(calls=(_FIRST, _LATER[later])))
    state = await _decided(loop, await loop.execute("Go."), is_stored=True)
    require(62, len(_waiting(state)) == 1 and len(done) == 1, f"{later} was endorsed, too: {done} ran")


async def check_approved_alone(kit: CanMakeLoops) -> None:
    """Check that an approval without an endorsement, and one in another execution, say nothing about a later call."""
    loop, done = kit.looped(_Plan(calls=(_FIRST, _FIRST)))
    state = await loop.execute("Go.")
    call = _only(state)
    state = await loop.resume(state, {call.key: approve(call.digest)})
    require(62, len(_waiting(state)) == 1 and len(done) == 1, "the approval of one call has endorsed its values")
    call = _only(state)
    state = await loop.resume(state, {call.key: approve(call.digest, endorse=["to"])})
    state = await loop.execute(state.with_message("Go on."))
    require(62, len(_waiting(state)) == 1, "what was endorsed in one execution is endorsed in the next one")


async def check_refused(kit: CanMakeLoops) -> None:
    """Check that an endorsement is about arguments that somebody else wrote, as they were shown."""
    loop, done = kit.looped(_Plan(calls=(_FIRST, _FIRST)))
    state = await loop.execute("Go.")
    call = _only(state)
    for decision in (
        approve(endorse=["to"]),
        approve(call.digest, endorse=["body"]),
        Approve("0" * 64, endorse=("to",)),
    ):
        try:
            await loop.resume(state, {call.key: decision})
        except DecisionError:
            continue
        require(62, condition=False, reason=f"{decision} counts, and endorses what nobody has seen as foreign: {done}")


async def _decided(loop: AgentLoop[Any], state: AgentState[Any], *, is_stored: bool) -> AgentState[Any]:
    """Endorse the value of the first call."""
    call = _only(state)
    require(
        62,
        call.endorsable == ("to",),
        f"of the call one could endorse {call.endorsable}, and a stranger has written `to`",
    )
    state = from_json(to_json(state), AgentState) if is_stored else state
    return await loop.resume(state, {call.key: approve(call.digest, endorse=["to"])})


def _only(state: AgentState[Any]) -> PendingCall:
    """Return the one call that waits."""
    waiting = _waiting(state)
    require(62, len(waiting) == 1, f"{len(waiting)} calls wait, and one has an argument of a stranger")
    return waiting[0]


def _waiting(state: AgentState[Any]) -> list[PendingCall]:
    return [call for call in state.pending if not call.waits_for and not call.inner]


LATER: Final = tuple(_LATER)
"""The names of the calls that wait although a value was endorsed before."""
