"""The runs that are killed: agents of five steps, each a mixture of what may be going on when a process dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from agentloop import AgentLoop, ToolCallingDriver, ToolContext, tool
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.tool import Tool
from agentloop.events import AgentStepCompleted
from agentloop.interception import RequireApproval, Resilience
from agentloop.values import Event, InDoubt
from tests.durability.place import Place
from tests.durability.work import EFFECTS, Plan, Script, flaky, tools_of

RUN = "run"
"""The id of the execution that is killed."""

Build = Callable[[Place, CanJournal], AgentLoop]


@frozen
class Workload:
    """A run that is to be killed.

    Attributes:
        build: makes the loop.
        ends_as: the status that it has to end with when it is recovered after a kill.
    """

    build: Build
    ends_as: tuple[str, ...] = ("completed",)


def script_of(one: str, other: str, third: str) -> Script:
    """Return the script of five steps: one call, three side by side, calls one at a time, a mixture, and the answer."""
    return (
        [f"work_{one}"],
        [f"work_{one}", f"work_{other}", f"grind_{third}"],
        [f"seal_{other}", f"seal_{third}"],
        [f"grind_{other}", f"seal_{one}", f"work_{third}"],
    )


def of_kinds(kinds: Sequence[str], *, in_doubt: InDoubt = InDoubt.TELL) -> Build:
    """Make a loop whose three tools of a step are of these kinds of effect; `effect_probed` is one of its own."""

    def build(place: Place, journal: CanJournal) -> AgentLoop:
        one, other, third = [kinds[at % len(kinds)] for at in range(3)]
        driver = ToolCallingDriver(inference=Plan(place, script_of(one, other, third)))
        return AgentLoop(driver, all_tools(place), journal=journal, in_doubt=in_doubt)

    return build


def all_tools(place: Place) -> list[Tool]:
    """Make the tools of all kinds."""
    made = [one for effect in EFFECTS for one in tools_of(place, effect)]
    return [*made, *tools_of(place, "effect", probed=True)]


def helped(place: Place, journal: CanJournal, *, approved: Sequence[str] = ()) -> AgentLoop:
    """Make a loop whose agent has another one do a part, beside calls of its own."""
    inner = Plan(place, (["work_effect", "work_pure"], ["seal_effect"], ["work_idempotent"]))
    approval = [RequireApproval(approved)] if approved else []
    helper = AgentLoop(ToolCallingDriver(inference=inner), all_tools(place), interceptors=approval)
    script = (["work_effect"], ["agent", "work_effect", "work_idempotent"], ["agent"], ["seal_effect"])
    tools = [*all_tools(place), helper.as_tool("agent", "Does a part of the work.")]
    return AgentLoop(ToolCallingDriver(inference=Plan(place, script)), tools, journal=journal)


def approved(place: Place, journal: CanJournal) -> AgentLoop:
    """Make a loop that asks before it does anything with an effect."""
    driver = ToolCallingDriver(inference=Plan(place, script_of("effect", "effect_probed", "pure")))
    return AgentLoop(
        driver, all_tools(place), journal=journal, interceptors=[RequireApproval(["work_effect", "seal_*"])]
    )


def approved_inside(place: Place, journal: CanJournal) -> AgentLoop:
    """Make a loop whose agent has another one do a part, which asks before it does anything with an effect."""
    return helped(place, journal, approved=["work_effect", "seal_effect"])


def retried(place: Place, journal: CanJournal) -> AgentLoop:
    """Make a loop whose calls are tried again inside of one intent."""
    script = (["flaky"], ["flaky", "work_effect", "flaky"], ["seal_effect", "flaky"], ["flaky"])
    tools = [*all_tools(place), flaky(place)]
    driver = ToolCallingDriver(inference=Plan(place, script))
    return AgentLoop(driver, tools, journal=journal, interceptors=[Resilience()])


def steered(place: Place, journal: CanJournal) -> AgentLoop:
    """Make a loop that is sent a message after each of its steps."""
    loop = of_kinds(["effect", "pure", "idempotent"])(place, journal)
    inbox = loop.inbox(RUN)

    def send(event: Event) -> None:
        if event.step_number in {1, 2, 5}:
            text = f"message {event.step_number} of {os.getpid()}"
            place.note("sent", text)
            inbox.send(text)

    loop.on(AgentStepCompleted, send)
    return loop


def held(place: Place, journal: CanJournal) -> AgentLoop:
    """Make a loop whose first call goes on when somebody has opened a pipe and closed it again."""

    @tool(name="wait_effect")
    def wait(number: int, context: ToolContext) -> str:
        """Wait in the middle of an effect."""
        place.have_effect(context.idempotency_key, "wait_effect", "effect")
        (place.folder / "gate").read_bytes()
        return f"did {number}"

    plan = Plan(place, (["wait_effect"], ["work_effect"]))
    return AgentLoop(ToolCallingDriver(inference=plan), [wait, *all_tools(place)], journal=journal)


HELD = "held"
"""A workload that waits; somebody has to let it go on."""

WORKLOADS: Mapping[str, Workload] = {
    "pure": Workload(of_kinds(["pure"])),
    "idempotent": Workload(of_kinds(["idempotent"])),
    "effect": Workload(of_kinds(["effect"])),
    "mixed": Workload(of_kinds(EFFECTS)),
    "probed": Workload(of_kinds(["effect_probed"])),
    "suspend": Workload(of_kinds(["effect", "idempotent"], in_doubt=InDoubt.SUSPEND)),
    "fail": Workload(of_kinds(["effect"], in_doubt=InDoubt.FAIL), ("completed", "failed")),
    "agent": Workload(helped),
    "approved": Workload(approved),
    "approved inside": Workload(approved_inside),
    "retried": Workload(retried),
    "steered": Workload(steered),
}
