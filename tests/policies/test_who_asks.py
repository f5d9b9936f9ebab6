"""`by="principal"` and `by="tenant"`: what executions share belongs to whoever asks, in one word everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from agentloop import AgentLoop, AgentState, ScriptedInference, Tool, ToolCall, ToolExecution, tool
from agentloop.errors import ConfigurationError
from agentloop.loop import Identity
from agentloop.policies import (
    BudgetAccount,
    Cache,
    Deduplicate,
    RateLimiter,
    Resilience,
)
from agentloop.toolkits.memory import MemoryFile, MemoryScope, memory
from agentloop.values import ToolStatus
from agentloop.values.owners import name_asker
from agentloop.values.policies import CachePolicy, DeduplicatePolicy, RateLimit

ADA, OTHER_ADA = Identity("ada", tenant="acme"), Identity("ada", tenant="north")
BOB, EVE = Identity("bob", tenant="acme"), Identity("ada")
CALL = ToolCall("1", "look", '{"item": "lamp"}')


@define
class Shop:
    """A tool that counts how often it ran."""

    count: int = field(default=0, init=False)

    def tool(self, **policies: Any) -> Tool:
        """Return the tool with these policies."""

        @tool(effect="pure", **policies)
        def look(item: str) -> int:
            """Look."""
            self.count += 1
            return self.count

        return look


async def calling(loop: AgentLoop, principal: Identity | None, call: ToolCall = CALL) -> AgentState:
    """Run an execution that makes a call for a principal."""
    scripted = loop.replace(driver=AgentLoop.for_model(ScriptedInference(call, "Done.")).driver)
    return await scripted.execute("Look.", principal=principal)


def outcome(state: AgentState) -> ToolExecution:
    """Return the outcome of the call."""
    return state.steps[0].executions[0]


def loop_of(shop: Shop, *interceptors: Any, **policies: Any) -> AgentLoop:
    """Return a loop with the tool."""
    return AgentLoop.for_model(ScriptedInference("-"), tools=[shop.tool(**policies)], interceptors=interceptors)


CACHES: list[Callable[[Shop, Any], AgentLoop]] = [
    lambda shop, by: loop_of(shop, Resilience(), cache=CachePolicy(60, by=by)),
    lambda shop, by: loop_of(shop, Cache(CachePolicy(60), caller=by)),
    lambda shop, by: loop_of(shop, Resilience(), deduplicate=DeduplicatePolicy(60, by=by, across_executions=True)),
    lambda shop, by: loop_of(shop, Deduplicate(caller=by), deduplicate=DeduplicatePolicy(60, across_executions=True)),
]


@pytest.mark.parametrize("make", CACHES)
async def test_results_are_reused_for_whoever_asks(make: Callable[[Shop, Any], AgentLoop]) -> None:
    """One principal, or one tenant, gets what was found for it in an earlier execution, and nobody else does."""
    loop = make(Shop(), "principal")
    values = [outcome(await calling(loop, principal)).value for principal in (ADA, OTHER_ADA, BOB, EVE, ADA, EVE)]
    assert values == [1, 2, 3, 4, 1, 4]
    loop = make(Shop(), "tenant")
    assert [outcome(await calling(loop, principal)).value for principal in (ADA, OTHER_ADA, BOB)] == [1, 2, 1]


async def test_a_rate_is_that_of_whoever_asks() -> None:
    """Each principal, or each tenant, has a bucket of its own for the tool."""
    makers: list[Callable[[RateLimit], AgentLoop]] = [
        lambda limit: loop_of(Shop(), Resilience(), rate_limit=limit),
        lambda limit: loop_of(Shop(), RateLimiter(limit)),
    ]
    for make in makers:
        loop = make(RateLimit(1, per=1000, max_wait=0, by="principal"))
        statuses = [outcome(await calling(loop, principal)).status for principal in (ADA, OTHER_ADA, BOB, EVE, ADA)]
        assert statuses == [ToolStatus.SUCCEEDED] * 4 + [ToolStatus.BLOCKED]
        loop = make(RateLimit(1, per=1000, max_wait=0, by="tenant"))
        statuses = [outcome(await calling(loop, principal)).status for principal in (ADA, OTHER_ADA, BOB)]
        assert statuses == [ToolStatus.SUCCEEDED] * 2 + [ToolStatus.BLOCKED]


@pytest.mark.parametrize("by", ["principal", "tenant"])
@pytest.mark.parametrize(
    "make", [*CACHES, lambda shop, by: loop_of(shop, Resilience(), rate_limit=RateLimit(9, by=by))]
)
async def test_a_call_for_nobody_shares_with_nobody(make: Callable[[Shop, Any], AgentLoop], by: str) -> None:
    """Where nobody is known, the call does not run, and the execution fails with an error that names the fix."""
    shop = Shop()
    loop = make(shop, by)
    for principal in (None, *([EVE] if by == "tenant" else [])):
        state = await calling(loop, principal)
        assert state.errors[-1].type == "InterceptorFailed"
        assert "'look'" in state.errors[-1].message
        assert f"by={by!r} names nobody; run the execution for a principal: loop.execute(…, principal=Identity(…" in (
            state.errors[-1].message
        )
    assert shop.count == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: CachePolicy(by="user"),  # type: ignore[arg-type]
        lambda: Cache(caller="user"),  # type: ignore[arg-type]
        lambda: Deduplicate(caller="user"),  # type: ignore[arg-type]
        lambda: BudgetAccount("a", tokens=1, by="user"),  # type: ignore[arg-type]
        lambda: memory("memories.db", by="user"),  # type: ignore[arg-type]
    ],
)
def test_other_words_are_refused(make: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that means nothing is refused where it is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"'principal'(,| or) 'tenant'.* not 'user'"):
        make()
    with pytest.raises(TypeError, match="'principal' or 'tenant', not 'user'"):
        DeduplicatePolicy(by="user")  # type: ignore[arg-type]


def test_names_of_two_tenants_never_meet() -> None:
    """Signs in names are escaped, so that no name of one tenant is a name of another, or one without a tenant."""
    odd = [
        Identity("a", tenant="b"),
        Identity("b/a"),
        Identity("a/c", tenant="b"),
        Identity("c", tenant="b/a"),
        Identity("b%2Fa"),
    ]
    names = [name_asker("principal", each, "it") for each in odd]
    assert len(set(names)) == len(odd)
    with pytest.raises(ConfigurationError, match="at most 200 characters"):
        name_asker("principal", Identity("a" * 201), "it")


async def remembering(path: Path, principal: Identity | None, text: str = "", **options: Any) -> Any:
    """Let a model store or recall, for a principal; return the outcome of the call."""
    name, arguments = ("remember", f'{{"text": "{text}"}}') if text else ("recall", '{"query": ""}')
    loop = AgentLoop.for_model(ScriptedInference("-"), tools=[memory(str(path), **options)])
    return outcome(await calling(loop, principal, ToolCall("1", name, arguments)))


async def test_memories_are_those_of_whoever_asks(tmp_path: Path) -> None:
    """Each principal recalls its own memories, a tenant shares, and an agent or a session narrows them."""
    path = tmp_path / "memories.db"
    for principal, text in {ADA: "likes tea", OTHER_ADA: "likes wine", EVE: "likes milk"}.items():
        assert (await remembering(path, principal, text, by="principal")).succeeded
    for principal, text in {ADA: "likes tea", OTHER_ADA: "likes wine", EVE: "likes milk"}.items():
        assert [each["text"] for each in (await remembering(path, principal, by="principal")).value] == [text]
    assert (await remembering(path, BOB, by="principal")).value == ()
    assert (await remembering(path, ADA, by="principal", agent="desk")).value == ()
    await remembering(path, ADA, "the office is shut", by="tenant")
    assert [each["text"] for each in (await remembering(path, BOB, by="tenant")).value] == ["the office is shut"]
    file = MemoryFile(path)
    assert [each.text for each in file.memories(MemoryScope(user="ada", tenant="acme"))] == ["likes tea"]
    assert [each.text for each in file.memories(MemoryScope(user="ada"))] == ["likes milk"]
    assert [each.text for each in file.memories(MemoryScope(tenant="acme"))] == ["the office is shut"]


async def test_a_memory_of_nobody_is_refused(tmp_path: Path) -> None:
    """The model hears that the program has not said who asks, and nothing is stored; a user and `by` exclude each other."""
    path = tmp_path / "memories.db"
    for by, principal in (("principal", None), ("tenant", None), ("tenant", EVE)):
        refused = await remembering(path, principal, "likes tea", by=by)
        assert refused.status is ToolStatus.FAILED
        assert "the memory does not know whose request this is" in refused.error.message
    with pytest.raises(ConfigurationError, match="leave one of them out"):
        memory(str(path), user="ada", by="principal")
