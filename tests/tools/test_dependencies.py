"""`ToolContext[Shop]`: tools declare the type of their dependencies, and wrong ones do not start an execution."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NewType,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    assert_type,
    runtime_checkable,
)

import pytest
from attrs import evolve, frozen

from agentloop import AgentLoop, RequireApproval, ScriptedInference, Tool, ToolCall, ToolContext, handoff_to, tool
from agentloop.contracts import ToolGroup
from agentloop.contracts.tool import CanRequireDependencies
from agentloop.durable import MemoryJournal, fork, replay
from agentloop.errors import DependenciesFailed, InvalidDependencies, InvalidParameter
from agentloop.loop import Identity, RunRequest
from agentloop.testing import ExecutorBench
from agentloop.toolkits import Ensemble, ToolOverride
from agentloop.values import AgentState, ExecutionStatus, Message, approve, from_json, happened, to_json
from agentloop.values.records import Reconciliation
from agentloop.values.run_requests import request_of, with_request
from tests.loop.test_discovery import FixedGroup


@frozen
class Shop:
    """A service with state."""

    name: str

    def sell(self, item: str) -> str:
        return f"{self.name} sells {item}"


class Market(Shop):
    """A shop, too."""


@runtime_checkable
class Seller(Protocol):
    """Whatever sells."""

    def sell(self, item: str) -> str: ...


class Buyer(Protocol):
    """Cannot be checked at run time."""

    def buy(self, item: str) -> str: ...


class Settings(TypedDict):
    """A dict at run time."""

    limit: int


UserId = NewType("UserId", int)
T = TypeVar("T")
ShopContext: TypeAlias = ToolContext[Shop]


@tool(effect="pure")
async def sell(context: ToolContext[Shop], item: str) -> str:
    """Sell an item."""
    assert_type(context.dependencies, Shop)
    return context.dependencies.sell(item)


@tool(effect="pure")
def peek(context: ToolContext) -> str:
    """Name the type of the dependencies."""
    assert_type(context.dependencies, Any)
    return type(context.dependencies).__name__


CALL = ToolCall("1", "sell", '{"item": "lamps"}')


def loop_of(*tools: Tool | ToolGroup, model: ScriptedInference | None = None, **parts: Any) -> AgentLoop:
    """Return a loop whose model sells lamps."""
    return AgentLoop.for_model(model or ScriptedInference(CALL, "Sold."), tools=tools, **parts)


def declaring(hint: str) -> Tool:
    """Return a tool whose context has this annotation."""
    names = {**globals(), "Annotated": Annotated, "Literal": Literal}
    exec(f"def take(context: {hint}) -> str:\n    'Take the context.'\n    return 'taken'", names)
    return tool(names["take"])


@pytest.mark.parametrize(
    "hint",
    [
        "ToolContext[Shop]",
        "'ToolContext[Shop]'",
        "ToolContext['Shop']",
        "ShopContext",
        "Annotated[ToolContext[Shop], 'of the user']",
        "ToolContext[Annotated[Shop, 'of the user']]",
        "ToolContext[Shop] | None",
        "ToolContext[Shop] | ToolContext[Settings]",
    ],
)
async def test_every_spelling_of_the_annotation_is_read(hint: str) -> None:
    """The context is injected, no parameter of the schema, and declares its dependencies, however it is written."""
    subject = declaring(hint)
    assert subject.parameters["properties"] == {}
    bench = ExecutorBench([subject], dependencies=Shop("Ada's"))
    assert (await bench.run(ToolCall("1", "take", "{}"))).executions[0].value == "taken"
    with pytest.raises(TypeError, match=r"'take' needs dependencies of type .*Shop.*, not int"):
        await AgentLoop.for_model(ScriptedInference("Hello."), tools=[subject]).execute("Hi.", dependencies=3)


@pytest.mark.parametrize(
    ("hint", "fitting", "wrong"),
    [
        ("Shop", [Shop("a"), Market("b")], [None, "a shop", Shop]),
        ("Shop | None", [Shop("a"), None], ["a shop"]),
        ("None", [None], [0]),
        ("Seller", [Shop("a")], [3, None]),
        ("Buyer", [Shop("a"), 3, None], []),
        ("Settings", [{"limit": 3}], [[], None]),
        ("UserId", [3], ["3"]),
        ("float", [0.5, 1], ["1"]),
        ("dict[str, int]", [{}, {"a": "b"}], [[]]),
        ("type[Shop]", [Shop], [Shop("a")]),
        ("Callable[[str], str]", [print], ["print"]),
        ("Literal['test', 'live']", ["test"], ["other", []]),
        ("Any", [None, 3], []),
        ("object", [None, 3], []),
        ("T", [None, 3], []),
    ],
)
async def test_dependencies_are_compared_with_the_declared_type(
    hint: str, fitting: Sequence[object], wrong: Sequence[object]
) -> None:
    """Classes, unions, protocols and generic types are checked as far as Python can tell; the rest is not checked."""
    loop = AgentLoop.for_model(ScriptedInference("Hello."), tools=[declaring(f"ToolContext[{hint}]")])
    for value in fitting:
        assert (await loop.execute("Hi.", dependencies=value)).status is ExecutionStatus.COMPLETED
    for value in wrong:
        with pytest.raises(TypeError, match="'take' needs dependencies of type"):
            await loop.execute("Hi.", dependencies=value)


async def test_wrong_dependencies_start_nothing() -> None:
    """No model is called, nothing is recorded, and the sentence names the tool, the type and what was passed."""
    model, journal = ScriptedInference(CALL, "Sold."), MemoryJournal()
    loop = loop_of(sell, peek, model=model, journal=journal)
    with pytest.raises(InvalidDependencies) as wrong:
        await loop.execute("Hi.", execution_id="run", dependencies="a shop")
    assert isinstance(wrong.value, TypeError)
    assert str(wrong.value) == (
        "the tool 'sell' needs dependencies of type Shop, not str: pass them as dependencies=… to the execution"
    )
    with pytest.raises(TypeError, match="of type Shop, and there are none"):
        await loop.execute("Hi.")
    with pytest.raises(TypeError, match="and there are none"):
        await anext(loop.iterate("Hi."))
    with pytest.raises(TypeError, match="and there are none"):
        async for _ in loop.stream("Hi."):
            pass
    assert model.requests == []
    assert list(await journal.list()) == []
    state = await loop.execute("Hi.", dependencies=Shop("Ada's"))
    assert state.steps[0].executions[0].value == "Ada's sells lamps"


async def test_an_execution_is_resumed_with_the_same_dependencies() -> None:
    """A forgotten argument of `resume` uses up no decision."""
    loop = loop_of(sell, interceptors=[RequireApproval(["sell"])], journal=MemoryJournal())
    state = await loop.execute("Hi.", dependencies=Shop("Ada's"))
    decisions = {state.pending[0].key: approve()}
    with pytest.raises(TypeError, match="'sell' needs dependencies of type Shop"):
        await loop.resume(state, decisions)
    recorded = await loop.recover(state.execution_id)
    assert recorded.status is ExecutionStatus.SUSPENDED
    assert await loop.resume(state, {}) == recorded
    resumed = await loop.resume(state, decisions, dependencies=Shop("Ada's"))
    assert resumed.steps[0].executions[0].value == "Ada's sells lamps"


async def test_an_execution_that_has_ended_needs_no_dependencies() -> None:
    """`recover` reads its state; nothing runs."""
    loop = loop_of(sell, journal=MemoryJournal())
    ended = await loop.execute("Hi.", dependencies=Shop("Ada's"))
    assert await loop.recover(ended.execution_id) == ended


async def test_recovering_without_dependencies_records_nothing() -> None:
    """An interrupted execution is left as it is, and can be recovered with its dependencies afterwards."""
    journal = MemoryJournal()
    loop = loop_of(sell, journal=journal)
    ended = await loop.execute("Hi.", dependencies=Shop("Ada's"))
    forked = await fork(journal, ended.execution_id, 0)
    records = await journal.read(forked)
    with pytest.raises(TypeError, match="'sell' needs dependencies of type Shop, and there are none"):
        await loop_of(sell, journal=journal).recover(forked)
    assert await journal.read(forked) == records
    recovered = await loop_of(sell, journal=journal).recover(forked, dependencies=Shop("Bob's"))
    assert recovered.status is ExecutionStatus.COMPLETED


async def test_a_replay_needs_no_dependencies() -> None:
    """Recorded calls are answered without their tools, those of a sub-agent as well."""
    journal = MemoryJournal()
    inner = loop_of(sell)
    delegate = inner.as_tool("delegate", "Delegate a task.")
    model = ScriptedInference(ToolCall("0", "delegate", '{"task": "Sell."}'), CALL, "Sold.")
    loop = loop_of(delegate, sell, model=model, journal=journal)
    state = await loop.execute("Hi.", dependencies=Shop("Ada's"))
    assert [call.execution.value for call in state.messages[1].exchanges] == ["Sold."]
    result = await replay(journal, state.execution_id, loop)
    assert result.is_equal, result.explain()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda shop: loop_of(Ensemble("shop", [shop], overrides={"sell": ToolOverride(description="Sell it.")})),
        lambda shop: loop_of(loop_of(shop).as_tool("delegate", "Delegate a task.")),
        lambda shop: loop_of(handoff_to(loop_of(shop), name="hand_over", description="Hand over.")),
    ],
    ids=["ensemble", "sub-agent", "handoff"],
)
def test_tools_behind_other_tools_are_checked(wrap: Callable[[Tool], AgentLoop]) -> None:
    """An ensemble, a sub-agent and a handoff have the requirements of the tools that they lead to."""
    with pytest.raises(TypeError, match="'sell' needs dependencies of type Shop, not int"):
        wrap(sell).execute_sync("Hi.", dependencies=3)


def test_agents_that_hand_over_to_each_other_are_checked_in_the_call() -> None:
    """A target that is a function is not called at the start; the tool itself refuses the dependencies."""
    first = loop_of(
        handoff_to(lambda: second, name="hand_over", description="Hand over."),
        model=ScriptedInference(ToolCall("0", "hand_over", "{}")),
    )
    second = loop_of(handoff_to(lambda: first, name="hand_back", description="Hand back."), sell)
    state = first.execute_sync("Hi.", dependencies=3)
    (call,) = state.steps[1].executions
    assert call.status.value == "failed"
    assert "'sell' needs dependencies of type Shop, not int" in call.error_message
    assert not call.may_have_run


async def test_a_discovered_tool_refuses_wrong_dependencies_before_it_runs() -> None:
    """The tools of a discovering group are known only after the start."""
    state = await loop_of(FixedGroup(sell)).execute("Hi.", dependencies=3)
    (call,) = state.steps[0].executions
    assert "'sell' needs dependencies of type Shop, not int" in call.error_message
    assert not call.may_have_run


class Till:
    """An object with tools."""

    @tool(effect="pure")
    def count(self, context: ToolContext[Shop]) -> str:
        """Count the money."""
        return context.dependencies.name


def test_a_method_declares_dependencies() -> None:
    """The type is read from a method of an object."""
    with pytest.raises(TypeError, match="'count' needs dependencies of type Shop"):
        loop_of(Till().count).execute_sync("Hi.")


def look_up(context: ToolContext[Shop]) -> Reconciliation:
    """Look for a call."""
    return happened(context.dependencies.name)


class LookUp:
    """Looks for a call."""

    async def __call__(self, context: ToolContext[Shop]) -> Reconciliation:
        return look_up(context)


@pytest.mark.parametrize("reconcile", [look_up, LookUp(), partial(LookUp())])
async def test_a_reconcile_function_gets_the_typed_context(reconcile: Callable[..., Any]) -> None:
    """The same annotation injects the context into the function, or the object, that looks for an interrupted call."""
    subject = tool(reconcile=reconcile)(sell.function)
    context = ToolContext(execution_id="e", agent_id="a", idempotency_key="e/1/0", dependencies=Shop("Ada's"))
    assert await subject.with_tool_context(context).reconcile(item="lamp") == happened("Ada's")


class Greeter(Tool, CanRequireDependencies):
    """A tool that is written as a class checks by the contract."""

    name = "greet"
    description = "Greet."
    parameters: ClassVar[dict[str, Any]] = {"type": "object"}

    def check_dependencies(self, dependencies: object) -> None:
        if dependencies is None:
            raise TypeError("greet needs somebody")

    async def use(self, *_: Any, **arguments: Any) -> str:
        return "Hello."


def test_a_class_checks_dependencies_by_contract() -> None:
    """`CanRequireDependencies` is called before the execution starts."""
    with pytest.raises(TypeError, match="greet needs somebody"):
        loop_of(Greeter()).execute_sync("Hi.")


def test_a_context_is_generic_for_type_checkers_alone() -> None:
    """Subscription changes neither the class nor its equality; a context of a subclass is one of the class."""
    plain = ToolContext(execution_id="e", agent_id="a", idempotency_key="e/1/0", dependencies=Market("b"))
    typed = ToolContext[Market](execution_id="e", agent_id="a", idempotency_key="e/1/0", dependencies=Market("b"))
    assert type(plain) is type(typed)
    assert plain == typed
    wider: ToolContext[Shop] = typed
    assert evolve(wider, attempt=2).dependencies.name == "b"


# --- dependencies that are made for each run --------------------------------------------------------------------


class Opened:
    """Shops that were opened and closed, in order."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def plain(self, request: RunRequest) -> Shop:
        """Return a shop."""
        return Shop(request.execution_id)

    async def later(self, request: RunRequest) -> Shop:
        """Return a shop, after a wait."""
        await asyncio.sleep(0)
        return Shop(request.execution_id)

    @contextmanager
    def managed(self, request: RunRequest) -> Iterator[Shop]:
        """Open and close a shop."""
        self.notes.append(f"open {request.execution_id}")
        yield Shop(request.execution_id)
        self.notes.append(f"close {request.execution_id}")

    @asynccontextmanager
    async def managed_later(self, request: RunRequest) -> AsyncIterator[Shop]:
        """Open and close a shop, with waits."""
        with self.managed(request) as shop:
            await asyncio.sleep(0)
            yield shop


class Stand(Shop):
    """A shop that is made of a request."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__(request.execution_id)


@pytest.mark.parametrize("name", ["plain", "later", "managed", "managed_later", "partial", "class"])
async def test_a_function_of_the_loop_makes_dependencies_for_each_run(name: str) -> None:
    """Plain and async functions, context managers, partials and classes make what a tool gets; context managers are left after the run."""
    opened = Opened()
    makes: dict[str, object] = {"partial": partial(Opened.plain, opened), "class": Stand}
    loop = loop_of(sell, dependencies=makes.get(name) or getattr(opened, name))
    model = ScriptedInference(CALL, "Sold.", CALL, "Sold.")
    loop = loop.replace(driver=AgentLoop.for_model(model).driver)
    for name_of_run in ("one", "two"):
        state = await loop.execute("Sell.", execution_id=name_of_run)
        assert state.steps[0].executions[0].value == f"{name_of_run} sells lamps"
    assert opened.notes == (["open one", "close one", "open two", "close two"] if "managed" in name else [])


async def test_dependencies_of_an_execution_come_before_those_of_its_loop() -> None:
    """Whoever begins an execution may pass others; a function that is passed there is a value, as ever."""
    opened = Opened()
    loop = loop_of(sell, dependencies=opened.managed)
    state = await loop.execute("Sell.", dependencies=Shop("Ada's"))
    assert state.steps[0].executions[0].value == "Ada's sells lamps"
    assert not opened.notes
    with pytest.raises(InvalidDependencies, match="not method"):
        await loop.execute("Sell.", dependencies=opened.managed)
    shared = loop_of(sell, dependencies=Shop("All's"))
    assert (await shared.execute("Sell.")).steps[0].executions[0].value == "All's sells lamps"


async def test_wrong_dependencies_that_were_made_are_closed_and_nothing_runs() -> None:
    """What a function makes is checked by its type before anything is recorded, and closed if it is wrong."""
    journal, notes = MemoryJournal(), list[str]()

    @contextmanager
    def make(_: RunRequest) -> Iterator[int]:
        yield 3
        notes.append("closed")

    loop = loop_of(sell, dependencies=make, journal=journal)
    for run in (loop.execute("Sell.", execution_id="one"), loop.get_or_start("Sell.", "one")):
        with pytest.raises(InvalidDependencies, match=r"'sell' needs dependencies of type .*Shop.*, not int"):
            await run
    assert notes == ["closed", "closed"]
    assert await journal.head("one") is None

    def fail(_: RunRequest) -> Shop:
        raise LookupError("the shop is shut")

    with pytest.raises(DependenciesFailed, match="'one' could not be made: LookupError: the shop is shut"):
        await loop.replace(dependencies=fail).get_or_start("Sell.", "one")
    assert await journal.head("one") is None
    assert (await loop.replace(dependencies=Opened().plain).get_or_start("Sell.", "one")).output == "Sold."


async def test_whoever_continues_an_execution_makes_its_dependencies_anew() -> None:
    """A suspended execution holds none; the process that resumes it opens its own for the same execution."""
    opened, journal = Opened(), MemoryJournal()
    loop = loop_of(sell, dependencies=opened.managed, journal=journal, interceptors=[RequireApproval(["sell"])])
    state = await loop.execute("Sell.", execution_id="one")
    assert opened.notes == ["open one", "close one"]
    (call,) = state.pending
    other = loop_of(sell, dependencies=opened.managed_later, journal=journal)
    ended = await other.resume("one", {call.key: approve(call.digest)})
    assert ended.steps[0].executions[0].value == "one sells lamps"
    assert opened.notes == ["open one", "close one"] * 2
    assert (await other.recover("one")).output == "Sold."  # it has ended, and nothing is made
    assert len(opened.notes) == 4


async def test_an_agent_as_a_tool_has_dependencies_of_its_own_or_those_of_its_caller() -> None:
    """An agent whose loop makes dependencies needs none of its caller; another one is checked with those of its caller."""
    opened = Opened()
    seller = loop_of(sell, dependencies=opened.managed)
    task = ToolCall("1", "seller", '{"task": "Sell."}')
    caller = loop_of(seller.as_tool("seller", "Sells."), model=ScriptedInference(task, "Done."))
    assert (await caller.execute("Go.", execution_id="one")).output == "Done."
    assert opened.notes == ["open one/1/0/agent", "close one/1/0/agent"]
    plain = loop_of(sell).as_tool("seller", "Sells.")
    with pytest.raises(InvalidDependencies, match="'sell' needs dependencies"):
        await loop_of(plain, model=ScriptedInference(task, "Done.")).execute("Go.")
    caller = loop_of(plain, model=ScriptedInference(task, "Done."), dependencies=opened.managed)
    assert (await caller.execute("Go.", execution_id="two")).output == "Done."
    assert opened.notes[2:] == ["open two", "close two"]


async def test_an_interrupted_run_leaves_its_dependencies() -> None:
    """A run that is cancelled, or whose generator is closed, closes what was made for it."""
    opened, begun = Opened(), asyncio.Event()

    @tool(effect="pure")
    async def wait(context: ToolContext[Shop]) -> None:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()

    model = ScriptedInference(ToolCall("1", "wait", "{}"))
    loop = loop_of(wait, model=model, dependencies=opened.managed_later)
    running = asyncio.create_task(loop.execute("Wait.", execution_id="one"))
    await begun.wait()
    running.cancel()
    await asyncio.wait((running,))
    assert opened.notes == ["open one", "close one"]
    states = loop_of(sell, dependencies=opened.managed).iterate("Sell.", execution_id="two")
    await anext(states)
    await states.aclose()
    assert opened.notes[2:] == ["open two", "close two"]


async def test_an_agent_as_a_tool_is_asked_for_by_whoever_asked_its_caller() -> None:
    """The principal and the kept headers of an execution reach its sub-agents, and no later execution of the conversation."""
    seen: list[RunRequest] = []

    def make(request: RunRequest) -> Shop:
        seen.append(request)
        return Shop("a")

    ada = Identity("ada", tenant="north", scopes=["start"])
    task = ToolCall("1", "seller", '{"task": "Sell."}')
    caller = loop_of(
        loop_of(sell, dependencies=make).as_tool("seller", "Sells."),
        model=ScriptedInference(task, "Done.", "Hello."),
        dependencies=make,
    )
    asked = with_request(AgentState.start("Go."), "one", ada, {"X-Region": "eu"})
    state = from_json(to_json(await caller.execute(asked, execution_id="one")), AgentState)
    assert request_of(state) == seen[0]
    assert [(each.principal, each.headers) for each in seen] == [(ada, {"x-region": "eu"})] * 2
    await caller.execute(state.with_message(Message.user("Again.")), execution_id="two")
    assert (seen[2].principal, seen[2].headers) == (None, {})


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"name": 3}, {"name": "a", "tenant": None}, {"name": "a", "scopes": "x"}]
)
def test_a_principal_has_a_name(wrong: dict[str, Any]) -> None:
    """A principal without a name, or with attributes of other types, is refused where it is made."""
    with pytest.raises(InvalidParameter, match="a principal"):
        Identity(**wrong)
