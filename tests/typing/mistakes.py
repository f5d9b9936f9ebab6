"""Lines that type checkers have to refuse; a directive that suppresses nothing is an error itself."""

from __future__ import annotations

from agentloop import (
    AgentLoop,
    AgentState,
    Interceptor,
    Message,
    ScriptedInference,
    SqliteJournal,
    ToolCallingDriver,
    tool,
)
from agentloop.events import ToolCallCompleted
from agentloop.interception import AfterStep, AfterToolUse, BeforeToolUse, at
from agentloop.loop import RunRequest
from agentloop.testing import EventRecorder, Fault, FaultPlan, run_in_virtual_time

driver = ToolCallingDriver(ScriptedInference())
AgentLoop("openai:gpt-5")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # a text
AgentLoop(driver, max_steps="3")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # a text
AgentLoop(driver, max_step=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # no such parameter
AgentLoop(driver, journal="runs.db")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # a text
AgentLoop.for_model("ollama:m", temprature=0.5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # misspelled
AgentLoop.for_model("ollama:m", temperature=0.5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # a key of options
AgentLoop.for_model("ollama:m", options={"temprature": 0.5})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # misspelled
AgentLoop.for_model("ollama:m", options={"stop": 3})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # a number
AgentLoop.for_model(driver)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # no model


def changes_of_another_type(loop: AgentLoop[int]) -> None:
    """A copy has parts of the types that they have in `AgentLoop`."""
    loop.replace(jornal=None)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # misspelled
    loop.replace(max_steps="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # a text
    text: str = loop.replace(max_steps=3).run_sync("go")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # it is an int
    text.strip()


def outputs_of_another_type(loop: AgentLoop[int], state: AgentState[int]) -> None:
    """The type of an answer is not forgotten."""
    text: str = loop.run_sync("go")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # it is an int
    output: str = state.output  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # it is an int
    narrower: AgentLoop[bool] = loop  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # not every int is one
    state.with_output((text, output, narrower))
    state.final_text.upper()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # it may be None
    loop.execute_sync(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no input


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


add("1", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a text


class Careless(Interceptor):
    """Overrides points in wrong ways."""

    def before_tool_use(self, point: AfterToolUse) -> AfterToolUse:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # another point
        """Do nothing."""
        return point

    def after_step(self, point: AfterStep) -> None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # returns no context
        """Forget the result."""


def forget(point: AfterToolUse) -> AfterToolUse:
    """Do nothing."""
    return point


def mistakes_at_points(point: BeforeToolUse) -> None:
    """A point offers what can be changed there, and nothing else."""
    point.with_value(3)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # there is no value yet
    point.with_arguments("table")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no mapping
    at("before_step", forget)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # of another point
    at("before_tool", lambda call: call)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # there is no such point
    point.call.name = "sell"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # values are frozen


def mistakes_with_states(state: AgentState[int], loop: AgentLoop[int], journal: SqliteJournal) -> None:
    """States, messages and decisions are what they say."""
    state.messages.append(Message.user("hello"))  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # a tuple
    Message("robot", ["hello"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such role
    loop.resume_sync(state, {"1": "approve"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]  # no decision
    loop.on(ToolCallCompleted, lambda event: event.call)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownLambdaType]  # it has an execution
    AgentLoop(driver, interceptors=[journal])  # type: ignore[list-item]  # pyright: ignore[reportCallIssue, reportArgumentType]  # no interceptor
    journal.read("run").__len__()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # it was not awaited


@tool(timeout="3 s")  # type: ignore[call-overload,untyped-decorator]  # pyright: ignore[reportArgumentType]  # a text
def harmless() -> None:
    """Do nothing."""


def mistakes_in_tests(loop: AgentLoop[int], recorder: EventRecorder) -> None:
    """The doubles and the faults are typed, too."""
    Fault.drop("tool", when="during")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # before or after
    Fault.delay("tool")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # for how long?
    FaultPlan("tool:add")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no fault
    text: str = FaultPlan().apply(loop).run_sync("go")  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # it is an int
    recorder.only(ToolCallCompleted).response.text.join([text])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # it has an execution
    run_in_virtual_time(loop.run_sync("go"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no coroutine


class Shop:
    """Dependencies of a loop."""


def open_other(_: RunRequest) -> int:
    """Make no shop."""
    return 3


def dependencies_of_another_type(loop: AgentLoop[str, Shop], shop: Shop) -> None:
    """What tools receive has the type of the loop's second parameter, whichever way an execution gets it."""
    loop.run_sync("go", dependencies=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no shop
    loop.stream("go", dependencies="shop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no shop
    loop.resume_sync("run", {}, dependencies=Shop)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the class
    loop.replace(dependencies=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # no shop
    AgentLoop.for_model("ollama:m", dependencies=shop).run_sync("go", dependencies=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no shop
    made: AgentLoop[str, Shop] = AgentLoop.for_model("ollama:m", dependencies=open_other)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # it makes an int
    other: AgentLoop[str, int] = loop  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # of shops
    made.run_sync("go", principal="ada")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no Identity
    other.run_sync("go")
