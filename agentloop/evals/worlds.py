"""Worlds: what the tools of an agent do in an eval, in place of what they do to the real world.

A suite has an ordered list of worlds. The first one that answers a call is asked no further; a call that none answers is refused.
"""

from __future__ import annotations

import inspect
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from inspect import isawaitable
from typing import Any, Final

from attrs import define, field, frozen

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tool import Tool
from agentloop.errors.kinds import InvalidParameter, ToolBlocked
from agentloop.evals.cases import Case
from agentloop.testing.fake_tool import FakeTool
from agentloop.tools.conversion import to_json_data
from agentloop.values.inference import InferenceRequest, Usage
from agentloop.values.json import JsonObject, JsonValue, as_frozen_dict, canonical_json, format_json, parse_json
from agentloop.values.messages import Message
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolExecution, ToolResult, ToolStatus
from agentloop.values.value import Value

REFUSED: Final = "refused"
REAL: Final = "real"


def signature_of(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a text that equal calls have in common, however their arguments are written."""
    return f"{name} {canonical_json(arguments)}"


@frozen(eq=False, repr=False, kw_only=True)
class WorldAnswer(Value):
    """What a world answers a call with.

    Attributes:
        value: the result as JSON.
        status: how the call ends.
        error: the error; None when it succeeded.
        runs: whether the tool runs, so that the rest of the answer is its own.
        source: the key of the recorded call whose outcome this is; empty for none.
        outcome: that outcome; None for none.
        model: the model that played the tool; empty for none.
        usage: the tokens that this took; None for none.
    """

    value: JsonValue = None
    status: ToolStatus = ToolStatus.SUCCEEDED
    error: ErrorInfo | None = None
    runs: bool = False
    source: str = ""
    outcome: ToolExecution | None = None
    model: str = ""
    usage: Usage | None = None

    @classmethod
    def failed(cls, error: Exception) -> WorldAnswer:
        """Return the answer that the tool raised this error."""
        return cls(status=ToolStatus.FAILED, error=ErrorInfo.of(error))


@frozen(eq=False, repr=False, kw_only=True)
class LedgerEntry(Value):
    """A call that the world of a trial has answered.

    Attributes:
        key: the key of the call.
        name: the name of the tool.
        arguments: the arguments.
        effect: the effect that the tool declares.
        world: the name of the world that answered.
        status: how the call ended; None while its own tool runs, or after that was interrupted.
        value: the result as JSON.
        source: the key of the recorded call whose outcome this was; empty for none.
    """

    key: str
    name: str
    arguments: JsonObject
    effect: Effect
    world: str
    status: ToolStatus | None
    value: JsonValue = None
    source: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether it is known how the call ended."""
        return self.status is not None

    @property
    def happened(self) -> bool:
        """Whether the call has changed this world: it has an effect, and it succeeded."""
        return self.effect is not Effect.PURE and self.status is ToolStatus.SUCCEEDED


@frozen(eq=False, repr=False, kw_only=True)
class KnownOutcome(Value):
    """What is known about a call: of `Case.calls`, or of the execution that the case was made from.

    Attributes:
        source: the key of the recorded call; `case/<position>` for one of `Case.calls`.
        answer: the outcome as an answer.
        is_after: whether the call came after the step from which candidates go on.
    """

    source: str
    answer: WorldAnswer
    is_after: bool = True


@define(eq=False, kw_only=True)
class WorldCall:
    """A call that a world is asked about, and the trial that it belongs to.

    Attributes:
        name: the name of the tool.
        arguments: the arguments, as plain data.
        effect: the effect that the tool declares.
        key: the key of the call.
        case: the case.
        seed: the seed of the trial.
        ledger: the calls that the worlds of the trial have answered, in order.
        known: what is known about equal calls, in the order of the record.
        state: what the world keeps for the trial; None for a world without a state.
        occurrence: how many equal calls the trial has made before.
        is_agent: whether the tool is an agent, or runs programs, whose own calls are answered one by one.
    """

    name: str
    arguments: dict[str, Any]
    effect: Effect
    key: str
    case: Case
    seed: int
    ledger: Sequence[LedgerEntry] = ()
    known: Sequence[KnownOutcome] = ()
    state: Any = None
    occurrence: int = 0
    is_agent: bool = False
    _random: random.Random | None = field(default=None, init=False)

    @property
    def random(self) -> random.Random:
        """Random numbers of this call. Candidates that make the same call in the same trial get the same ones, also after an interruption."""
        if self._random is None:
            origin = f"{self.seed}/{signature_of(self.name, self.arguments)}/{self.occurrence}"
            self._random = random.Random(origin)  # noqa: S311  # for a simulation
        return self._random


class World(ABC):
    """Answers calls in place of tools. One object serves all trials at the same time, so it keeps nothing between calls."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which a result counts its answers; unique among the worlds of a suite."""

    @abstractmethod
    def answer(self, call: WorldCall) -> WorldAnswer | Awaitable[WorldAnswer | None] | None:
        """Return the answer to a call, or an awaitable of it; None for a call that the next world is asked about.

        What it raises fails the call, as an error of the tool.
        """

    def open(self, case: Case, seed: int) -> object:  # noqa: ARG002  # for worlds that have a state
        """Return the state of the world for one trial, which is `WorldCall.state`; by default None.

        Args:
            case: the case of the trial.
            seed: its seed.
        """
        return None

    def repeats(self) -> bool:
        """Return whether a trial that goes on after an interruption asks the world about its earlier calls again, to have its state; by default no."""
        return False


@frozen
class Recorded(World):
    """Answers a call with the recorded outcome of an equal one: of the execution that the case was made from, or of `Case.calls`.

    An outcome of a call with an effect is used once, in the order of the record, and only where the candidate could meet it: after
    the step from which it goes on. One of a pure call answers any number of equal calls.

    Attributes:
        name: the name of the world.
    """

    name: str = "recorded"

    def answer(self, call: WorldCall) -> WorldAnswer | None:
        """Return the recorded outcome of an equal call; None without one."""
        if call.is_agent:
            return None
        if not call.known:
            return None
        used = {entry.source for entry in call.ledger if entry.source}
        unused = next((known for known in call.known if known.is_after and known.source not in used), None)
        if unused is None and call.effect is Effect.PURE:
            unused = call.known[-1]
        return None if unused is None else unused.answer


class Simulated(World):
    """Answers calls of the tools that it names, by functions, `FakeTool`s or fixed results.

        Simulated(search=find_in_catalog, pay=FakeTool("pay", returns="paid"), weather="sunny")

    A function gets the arguments by their names; one with a parameter `call` gets the `WorldCall` as well, whose `random` gives all
    candidates the same luck, and whose `state` is what `state` returns.

    Args:
        tools: what answers, by the name or the pattern of tools, such as `order_*`; for names that are no identifiers.
        state: returns the state of a trial from its case, such as a shop in memory. A trial that was interrupted makes a new one, and
            the functions are called again for its earlier calls.
        name: the name of the world.
        **named: as `tools`.

    Raises:
        InvalidParameter: it names no tool.
    """

    def __init__(
        self,
        tools: Mapping[str, Any] = as_frozen_dict({}),
        *,
        state: Callable[[Case], object] | None = None,
        name: str = "simulated",
        **named: Any,
    ) -> None:
        self._tools = {**tools, **named}
        if not self._tools:
            raise InvalidParameter(
                "Simulated names the tools that it simulates: Simulated(search=…), or Simulated({'order_*': …})"
            )
        self._state, self._name = state, name

    def __repr__(self) -> str:
        return f"Simulated({', '.join(self._tools)})"

    @property
    def name(self) -> str:
        """The name of the world."""
        return self._name

    def open(self, case: Case, seed: int) -> object:  # noqa: ARG002  # of the contract
        """Return a new state, and for each fake tool a copy that counts its own calls."""
        fakes = {pattern: _fresh(tool) for pattern, tool in self._tools.items() if isinstance(tool, FakeTool)}
        return (None if self._state is None else self._state(case)), fakes

    def repeats(self) -> bool:
        """Return whether it has a state or a fake tool, which counts its calls."""
        return self._state is not None or any(isinstance(tool, FakeTool) for tool in self._tools.values())

    def answer(self, call: WorldCall) -> Awaitable[WorldAnswer] | None:
        """Return what the function, the fake or the fixed result says; None for a tool that is not named."""
        pattern = next((each for each in self._tools if fnmatchcase(call.name, each)), None)
        return None if pattern is None else self._simulate(pattern, call)

    async def _simulate(self, pattern: str, call: WorldCall) -> WorldAnswer:
        state, fakes = call.state
        tool = fakes.get(pattern, self._tools[pattern])
        call.state = state
        if isinstance(tool, Tool):
            made: object = await tool.use(**call.arguments)
        elif callable(tool):
            takes_call = "call" in inspect.signature(tool).parameters and "call" not in call.arguments
            made = tool(**call.arguments, **({"call": call} if takes_call else {}))
            made = await made if isawaitable(made) else made
        else:
            made = tool
        return made if isinstance(made, WorldAnswer) else WorldAnswer(value=_json_of(made))


def _fresh(tool: FakeTool) -> FakeTool:
    fresh = copy(tool)
    fresh.calls = []
    return fresh


def _json_of(made: object) -> JsonValue:
    return made.value if isinstance(made, ToolResult) else to_json_data(made)


@frozen
class Played(World):
    """Lets a model play tools, or the user behind a tool that asks one. Its tokens and its cost are those of the trial.

    Attributes:
        inference: the model.
        tools: the names or patterns of the tools that it plays.
        rules: how they behave, in words for the model.
        name: the name of the world.
    """

    inference: CanInfer
    tools: tuple[str, ...] = field(converter=tuple[str, ...])
    rules: str = field(default="", repr=False)
    name: str = "played"

    def answer(self, call: WorldCall) -> Awaitable[WorldAnswer] | None:
        """Return what the model says; None for a tool that it does not play."""
        return self._play(call) if any(fnmatchcase(call.name, pattern) for pattern in self.tools) else None

    async def _play(self, call: WorldCall) -> WorldAnswer:
        earlier = [
            {"tool": entry.name, "arguments": dict(entry.arguments), "result": entry.value} for entry in call.ledger
        ]
        asked = {"case": call.case.text, "earlier": earlier, "tool": call.name, "arguments": call.arguments}
        request = InferenceRequest((Message.user(format_json(asked).decode()),), f"{_PLAYING}\n\n{self.rules}".strip())
        response = await self.inference.infer(request)
        return WorldAnswer(value=_parsed(response.text), model=response.model, usage=response.usage)


_PLAYING = (
    "You play a tool that an agent calls, in a test of the agent. You get the call, and the calls before it, as JSON. Reply with the "
    "result of the call alone, without a word about it. Stay consistent with your earlier results."
)


def _parsed(text: str) -> JsonValue:
    try:
        value: JsonValue = parse_json(text)
    except ValueError:
        return text
    return value


@frozen(init=False)
class Real(World):
    """Lets tools run: pure ones by default. A tool with an effect runs if its own name is given, and only then.

    Attributes:
        tools: the names of tools that run whatever their effect.
        pure: the names or patterns of tools that run if they are pure.
        name: the name of the world.

    Raises:
        InvalidParameter: a name of a tool whose effects are permitted is a pattern.
    """

    tools: tuple[str, ...] = ()
    pure: tuple[str, ...] = ("*",)
    name: str = REAL

    def __init__(self, *tools: str, pure: Iterable[str] = ("*",), name: str = REAL) -> None:
        pattern = next((tool for tool in tools if any(mark in tool for mark in "*?[")), None)
        if pattern is not None:
            raise InvalidParameter(f"Real({pattern!r}) would let effects run that nobody has named; name each tool")
        self.__attrs_init__(tools, (pure,) if isinstance(pure, str) else tuple(pure), name)

    def answer(self, call: WorldCall) -> WorldAnswer | None:
        """Return that the tool runs; None for one with an effect that is not named."""
        is_pure = call.effect is Effect.PURE and any(fnmatchcase(call.name, pattern) for pattern in self.pure)
        return WorldAnswer(runs=True) if is_pure or call.name in self.tools else None


@frozen
class Refused(World):
    """Refuses calls, with an error for the model. Every list of worlds ends with it.

    Attributes:
        reason: why, in words for the model.
        name: the name of the world.
    """

    reason: str = "it is not available; continue without it"
    name: str = REFUSED

    def answer(self, call: WorldCall) -> WorldAnswer | None:
        """Return the refusal. An agent runs, and its own calls are refused."""
        if call.is_agent:
            return WorldAnswer(runs=True)
        error = ErrorInfo(ToolBlocked.__name__, f"{call.name}: {self.reason}")
        return WorldAnswer(status=ToolStatus.BLOCKED, error=error)


DEFAULT_WORLDS: Final[tuple[World, ...]] = (Recorded(), Real(), Refused())
"""Recorded outcomes, then pure tools themselves; effects are refused."""


def as_worlds(given: World | Iterable[World]) -> tuple[World, ...]:
    """Return worlds as a suite has them: in their order, with the refusal at the end.

    Raises:
        InvalidParameter: something else is among them, or two have the same name.
    """
    worlds: tuple[object, ...] = (given,) if isinstance(given, World) else tuple(given)
    checked = []
    for world in worlds:
        if not isinstance(world, World):
            raise InvalidParameter(f"worlds are objects such as Recorded() or Simulated(search=…), not {world!r:.100}")
        checked.append(world)
    if not any(isinstance(world, Refused) for world in checked):
        checked.append(Refused())
    names = [world.name for world in checked]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidParameter(
            f"two worlds are named {twice!r}; give one another name, as in Simulated(…, name='shop')"
        )
    return tuple(checked)
