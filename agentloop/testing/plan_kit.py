"""The law suite of planned programs: whatever a program makes of foreign words, the words stay foreign."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from attrs import define, field, frozen

from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tool import Tool, ToolLike
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.errors import ToolBlocked
from agentloop.loop.agent_loop import AgentLoop
from agentloop.testing.kit import Kit, LawNotChecked, LawViolation, checked_factory, require
from agentloop.tools.decorator import tool
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.parts import Text
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolCall

_WORDS = "See the letter of Eve"
"""What a stranger has written: a text of one line."""
_OTHER = "zzz"
"""A text that no value of these programs has."""

# --- programs ---------------------------------------------------------------------------------------------------------

_STARTS: Mapping[str, str] = {
    "words": "NEW = (await mails())[0]['text']",
    "words of all mails": "NEW = str(await mails())",
    "a name in a text": "NEW = f'#{(await channels())[0]}'",
    "what an agent answers": "NEW = await helper(task=str(await mails()))",
    "what an agent picks": "NEW = [m['id'] for m in await mails() if m['id'] in await helper(task=str(await mails()))][0]",
    "the error of a call": "NEW = ''\ntry:\n    await failing()\nexcept RuntimeError as error:\n    NEW = error",
}
"""How foreign words come into a program."""
_STEPS: Mapping[str, str] = {
    "a sum of texts": "NEW = OLD + '!'",
    "a formatted text": "NEW = f'<{OLD}>'",
    "a slice": "NEW = OLD[0:9]",
    "characters": "NEW = ''.join([c for c in OLD])",
    "a method": "NEW = OLD.lower()",
    "a replacement": "NEW = OLD.replace('zzz', 'y')",
    "an argument of a method": "NEW = 'a-b'.replace('-', OLD)",
    "a separator": "NEW = OLD.join(['a', 'b'])",
    "lines": "NEW = OLD.splitlines()[0]",
    "JSON": "NEW = json.loads(json.dumps({'a': OLD}))['a']",
    "a match": "NEW = re.search('.+', OLD).group(0)",
    "matches": "NEW = re.findall('.+', OLD)[0]",
    "a substitution": "NEW = re.sub('zzz', 'y', OLD)",
    "an item of a list": "held = []\nheld.append(OLD)\nNEW = held[0]",
    "an item of two lists": "held = ['x'] + [OLD]\nNEW = held[1]",
    "an extension": "held = []\nheld.extend([OLD])\nNEW = held[0]",
    "an entry": "held = {}\nheld['a'] = OLD\nNEW = held.get('a')",
    "a name of an entry": "held = {}\nheld[OLD] = 1\nNEW = list(held.keys())[0]",
    "a name in a literal": "NEW = list({OLD: 1})[0]",
    "a value in a literal": "NEW = {'a': {'b': [OLD]}}['a']['b'][0]",
    "an assignment of two": "NEW, other = (OLD, 1)",
    "an added assignment": "NEW = ''\nNEW += OLD",
    "pairs": "NEW = list(zip([OLD], [1]))[0][0]",
    "a numbering": "NEW = list(enumerate([OLD]))[0][1]",
    "an order": "NEW = sorted([OLD])[0]",
    "the largest": "NEW = max([OLD, ''])",
    "a set": "NEW = list(set([OLD]))[0]",
    "one or the other": "NEW = '' or OLD",
    "one and the other": "NEW = OLD and 'x'",
    "a chosen one": "NEW = OLD if True else ''",
    "a branch": "NEW = 'Ann'\nif OLD != 'zzz':\n    NEW = 'Bob'",
    "a branch that does not run": "NEW = 'Ann'\nif OLD == 'zzz':\n    NEW = 'Bob'",
    "a branch that changes a list": "held = []\nif OLD != 'zzz':\n    held.append('Bob')\nNEW = held[0] + str(len(held))",
    "a loop": "NEW = 'Ann'\nwhile OLD == 'zzz':\n    NEW = 'Bob'",
    "a loop that is left": "NEW = 'Ann'\nfor n in [1, 2]:\n    if OLD != 'zzz':\n        break\n    NEW = 'Bob'",
    "a loop that goes on": "NEW = 'Ann'\nfor n in [1, 2]:\n    if OLD == 'zzz':\n        continue\n    NEW = 'Bob'",
    "a truth": "NEW = str('e' in OLD)",
    "a chain of comparisons": "NEW = str('a' < OLD < 'z')",
    "a negation": "NEW = str(not OLD)",
    "a length": "NEW = str(len(OLD))",
    "a count": "NEW = str(OLD.count('e') * 2 + 1)",
    "a number": "NEW = str(round(float(OLD.count('e')), 1))",
    "a sum": "NEW = str(sum([len(OLD), 1]))",
    "a range": "NEW = str(list(range(len(OLD))))",
    "an absolute value": "NEW = str(-abs(-len(OLD)))",
    "whether any": "NEW = str(any([OLD == 'x', False]))",
    "what a tool makes of it": "NEW = await echo(text=OLD)",
    "whether a call fails": "NEW = 'Ann'\ntry:\n    await refuse(text=OLD)\nexcept RuntimeError:\n    NEW = 'Bob'",
    "what is tried": "NEW = 'Ann'\ntry:\n    await echo(text=OLD)\n    NEW = 'Bob'\nexcept RuntimeError:\n    pass",
}
"""What a program makes of a text; NEW is a text again."""
_ENDS: Mapping[str, str] = {
    "an argument": "await pay(to=OLD)",
    "a part of an argument": "await pay(to={'names': [{'name': OLD}]})",
    "a name in an argument": "await pay(to={OLD: 1})",
    "a number as an argument": "await pay(to=len(OLD))",
    "one of several calls": "await asyncio.gather(echo(text='x'), pay(to=OLD))",
    "a branch": "if OLD != 'zzz':\n    await pay(to='Bob')",
    "the other branch": "if OLD == 'zzz':\n    pass\nelse:\n    await pay(to='Bob')",
    "a branch in a branch": "if OLD != 'zzz':\n    if 1 == 1:\n        await pay(to='Bob')",
    "a loop": "while OLD != 'zzz':\n    await pay(to='Bob')\n    break",
    "a loop that may have been left": "for n in [1, 2]:\n    if OLD == 'zzz':\n        break\n    await pay(to='Bob')",
    "the second half of a condition": "done = OLD != 'zzz' and await pay(to='Bob')",
    "a choice of two": "done = await pay(to='Bob') if OLD != 'zzz' else 1",
    "a call that was tried": "try:\n    await echo(text=OLD)\n    await pay(to='Bob')\nexcept RuntimeError:\n    pass",
    "a call that failed": "try:\n    await refuse(text=OLD)\nexcept RuntimeError:\n    await pay(to='Bob')",
}
"""How foreign words come to decide about a call of a program."""
_SHOWN: Mapping[str, str] = {
    "what is printed": "print('It is', OLD)",
    "the value at the end": "[OLD]",
    "a line that is printed, or not": "if OLD != 'zzz':\n    print('yes')",
    "a line that is not printed": "if OLD == 'zzz':\n    print('yes')",
    "a list that a branch has changed": "held = []\nif OLD == 'zzz':\n    held.append(1)\nlen(held)",
}
"""How they come to the model, which then makes a call itself."""
_CLEAN: Mapping[str, str] = {
    "an own field": "NEW = (await mails())[0]['id']",
    "the user's words": "NEW = 'Bob'",
    "a name": "NEW = (await channels())[0]",
    "a pick": "NEW = max(await mails(), key=lambda m: len(m['text']))['id']",
}
"""What is nobody else's, or decides by the rule of the program: a call with it runs."""


@frozen
class _Plan:
    """A program that takes foreign words to a call.

    Attributes:
        places: where they come from, what is made of them, and where they go.
        source: the program.
        calls_after: whether the model makes the call, after it has seen what the program shows.
    """

    places: tuple[str, ...]
    source: str
    calls_after: bool

    @classmethod
    def of(cls, start: str, steps: Sequence[str], end: str) -> _Plan:
        """Return the program of these places, by their names."""
        lines = [_STARTS.get(start, _CLEAN.get(start, "")).replace("NEW", "v0")]
        for number, step in enumerate(steps):
            lines.append(_STEPS[step].replace("OLD", f"v{number}").replace("NEW", f"v{number + 1}"))
        last = _ENDS[end] if end in _ENDS else _SHOWN[end]
        lines.append(last.replace("OLD", f"v{len(steps)}"))
        return cls((start, *steps, end), "\n".join(lines), end in _SHOWN)

    def __str__(self) -> str:
        return f"{' -> '.join(self.places)}\n{self.source}"


def _plans(seed: int | None) -> Iterator[_Plan]:
    """Yield each way on its own; or, with a seed, one way by chance that is a chain of several."""
    if seed is None:
        yield from [_Plan.of(start, [], end) for start in _STARTS for end in (*_ENDS, *_SHOWN)]
        yield from [_Plan.of("words", [step], "an argument") for step in _STEPS]
        return
    random = Random(seed)  # noqa: S311  # not for secrets
    steps = random.choices(list(_STEPS), k=random.randint(1, 4))
    yield _Plan.of(random.choice(list(_STARTS)), steps, random.choice([*_ENDS, *_SHOWN]))


# --- the world --------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Desk(CanInfer):
    """What the programs read and do, and the model that writes them.

    Attributes:
        turns: what the model says next.
        paid: whom the programs have paid.
    """

    turns: list[ToolCall | str] = field(factory=list)
    paid: list[object] = field(factory=list)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Say the next line."""
        del request
        turn = self.turns.pop(0) if self.turns else "done"
        return InferenceResponse((Text(turn) if isinstance(turn, str) else turn,))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Say it at once."""
        yield await self.infer(request)

    @property
    def tools(self) -> list[ToolLike]:
        """The tools."""

        @tool(effect="pure", own="id")
        async def mails() -> list[dict[str, str]]:
            """Read the mails."""
            return [{"id": "m1", "text": _WORDS}]

        @tool(effect="pure", identifiers="*")
        async def channels() -> list[str]:
            """List the channels."""
            return ["general"]

        @tool(effect="pure")
        async def echo(text: str) -> str:
            """Return a text."""
            return text

        @tool(effect="pure")
        async def failing() -> str:
            """Fail."""
            raise ValueError(_WORDS)

        @tool(effect="pure", own="*")
        async def refuse(text: str) -> str:
            """Refuse."""
            raise ToolBlocked(f"not {len(text)}")

        @tool(own="*")
        async def pay(to: Any) -> str:
            """Pay somebody."""
            self.paid.append(to)
            return "paid"

        return [mails, channels, echo, failing, refuse, pay]


class _Answering(CanInfer):
    """Answers every question by the id of the mail."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answer."""
        del request
        return InferenceResponse((Text("m1 m2"),))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Answer at once."""
        yield await self.infer(request)


# --- the kit ----------------------------------------------------------------------------------------------------------


class PlanKit(Kit):
    """Checks a tool that runs planned programs, such as `RunProgram(planned=True)`.

        PlanKit(lambda: MyPrograms())

    The programs are of the subset of Python that `RunProgram(planned=True)` describes; the tool has one parameter, `code`. They run in
    real time: the tool may use a process.

    Args:
        factory: makes the tool.
        examples: the number of programs by chance that are tried, besides each way on its own.
    """

    laws: tuple[int, ...] = (61,)

    def __init__(self, factory: Callable[[], Tool], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], Tool] = checked_factory(factory)

    def require_working(self) -> None:
        """Check that calls with what is nobody else's run unasked: a tool whose calls all wait keeps no law by that."""
        plans = [_Plan.of(start, [], "an argument") for start in _CLEAN]
        for plan, (state, paid) in zip(plans, self.run(plans), strict=True):
            if state.pending or len(paid) != 1:
                raise LawNotChecked(
                    f"a call has to run for which nobody else's words count, and it {_outcome(state)}:\n{plan}"
                )

    def law_61(self) -> None:
        """Whatever a program makes of foreign words, a call that they decide about waits for a person."""
        self.require_waiting([*_plans(None)])
        self.require_waiting([plan for seed in range(self.examples) for plan in _plans(seed)])

    def require_waiting(self, plans: Sequence[_Plan]) -> None:
        """Check that the call of each program waits.

        Raises:
            LawViolation: one has run, or no call was made.
            LawNotChecked: a program has failed.
        """
        for plan, (state, paid) in zip(plans, self.run(plans), strict=True):
            waits = any(call.call.name == "pay" for call in _waiting(state))
            if not waits and not paid:
                raise LawNotChecked(f"a program of the kit {_outcome(state)}:\n{plan}", 61)
            reason = f"a call that foreign words decide about has paid {paid} unasked"
            try:
                require(61, waits and not paid, reason)
            except LawViolation:
                self._failing = plan.source
                raise

    def run_seeds(self, first: int, last: int) -> None:
        """Check programs by chance, for the seeds from the first one to before the last one."""
        self.require_waiting([plan for seed in range(first, last) for plan in _plans(seed)])

    def run(self, plans: Sequence[_Plan]) -> list[tuple[AgentState[Any], list[object]]]:
        """Run programs one after the other, each as the first thing that a model does; return the states, and who was paid."""
        return asyncio.run(self._run(plans))

    async def _run(self, plans: Sequence[_Plan]) -> list[tuple[AgentState[Any], list[object]]]:
        desk, programs = _Desk(), self.factory()
        helper = AgentLoop(ToolCallingDriver(_Answering())).as_tool("helper", "Helps.", effect="pure")
        loop = AgentLoop(ToolCallingDriver(desk), [*desk.tools, helper, programs], approve="untrusted")
        ran: list[tuple[AgentState[Any], list[object]]] = []
        async with loop:
            for plan in plans:
                desk.turns = [ToolCall("1", programs.name, json.dumps({"code": plan.source}))]
                desk.turns += [ToolCall("2", "pay", '{"to": "Bob"}')] if plan.calls_after else []
                desk.paid = []
                ran.append((await loop.execute("Go."), desk.paid))
        return ran


def _waiting(state: AgentState[Any]) -> list[PendingCall]:
    return [call for call in state.pending if not call.waits_for and not call.inner]


def _outcome(state: AgentState[Any]) -> str:
    if state.pending:
        return f"waits for a decision about {', '.join([call.call.name for call in _waiting(state)])}"
    if state.status is ExecutionStatus.FAILED:
        return f"has failed: {state.errors[-1].message if state.errors else ''}"
    texts = [execution.text for step in state.steps for execution in step.executions]
    return f"has ended: {'; '.join(texts)}"
