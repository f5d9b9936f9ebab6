"""Grants: a person says yes from now on, within limits, and no call is let through twice, too late, or by somebody else's word."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, ScriptedInference, ToolCall, approve, tool
from agentloop.contracts import CanKeepGrants, Tool
from agentloop.durable import MemoryJournal, PostgresJournal, SqliteJournal, open_journal, replay
from agentloop.durable.bodies import read_intent
from agentloop.durable.forking import fork
from agentloop.errors import ConfigurationError, DecisionError, InvalidParameter, JournalError
from agentloop.events import GrantGiven, ToolCallGranted
from agentloop.interception import Interceptor, RequireApproval
from agentloop.policies import AskUnlessGranted, give_grant
from agentloop.testing import GrantKit, ManualClock
from agentloop.toolkits import Ensemble
from agentloop.values import AgentState, Grant, GrantState, RecordKind, from_json, to_json
from agentloop.values.grants import GrantUse
from agentloop.values.json import format_json, freeze_object, parse_json
from agentloop.values.points import BeforeToolUse
from agentloop.values.records import RecordedCall
from agentloop.values.run_requests import Identity, with_request
from tests.limits import LONGEST
from tests.policies import grant_process

NOW = datetime(2026, 11, 29, tzinfo=UTC)


class Ledger:
    """Notes which payments were made, by the keys of their calls."""

    def __init__(self) -> None:
        self.paid: list[float] = []

    @property
    def tool(self) -> Any:
        """A tool that pays."""

        @tool
        async def pay(amount: float, to: str = "ada") -> str:
            """Pay somebody."""
            self.paid.append(amount)
            return "paid"

        return pay


def pay(*amounts: object, to: str = "ada") -> list[ToolCall]:
    """Return the calls of one answer of the model."""
    return [
        ToolCall(f"call {index}", "pay", f'{{"amount": {amount}, "to": "{to}"}}')
        for index, amount in enumerate(amounts)
    ]


def payer(journal: Any, ledger: Ledger, *answers: Sequence[ToolCall] | str, **options: Any) -> AgentLoop:
    """Return an agent that asks before it pays, unless that is granted."""
    guard = AskUnlessGranted(RequireApproval("pay"), **options)
    return AgentLoop.for_model(
        ScriptedInference(*answers, "done"), tools=[ledger.tool], interceptors=[guard], journal=journal
    )


async def give(journal: Any, grant: Grant, **options: Any) -> GrantState:
    """Give a grant with the approval of a call, and return it."""
    loop = payer(journal, Ledger(), pay(1), **options)
    given: list[GrantState] = []
    loop.on(GrantGiven, lambda event: given.append(event.grant))
    state = await loop.execute("Pay.")
    (call,) = state.pending
    state = await loop.resume(state, {call.key: approve(call.digest, grant=grant, principal="boss")})
    assert state.final_text == "done"
    return given[0]


async def only_grant(journal: Any) -> GrantState:
    """Return the grant of a journal."""
    state: GrantState
    (state,) = await journal.grants()
    return state


# --- what a grant is ----------------------------------------------------------------------------------------------


async def test_a_grant_lets_later_calls_run_without_a_question() -> None:
    """The approval of one call allows others, in other executions; what it covers runs, and what it does not cover waits."""
    journal, ledger = MemoryJournal(), Ledger()
    given = await give(journal, Grant(arguments=["amount <= 50", 'to in ["ada", "ben"]'], uses=2))
    assert given.by == "boss"
    loop = payer(journal, ledger, pay(50), pay(51), pay(1, to="eve"), pay(2), pay(3))
    seen: list[ToolCallGranted] = []
    loop.on(ToolCallGranted, seen.append)
    state = await loop.execute("Pay.")
    assert ledger.paid == [50]
    state = await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    (waiting,) = state.pending
    assert waiting.call.arguments["to"] == "eve"
    state = await loop.resume(state, {waiting.key: approve(waiting.digest)})
    assert ledger.paid == [50, 51, 1, 2]
    assert [call.call.arguments["amount"] for call in state.pending] == [3]
    assert [event.grant_id for event in seen] == [given.id, given.id]
    records = await journal.read(state.execution_id)
    intents = [record.body for record in records if record.kind is RecordKind.CALL_INTENT]
    assert [given.id in body for body in intents] == [True, False, False, True]
    assert (await only_grant(journal)).status(NOW) == "used up"


@pytest.mark.parametrize(
    ("limit", "covered", "uncovered"),
    [
        (
            "amount <= 50",
            [{"amount": 50}, {"amount": -3.5}],
            [{"amount": 50.01}, {"amount": "5"}, {"amount": True}, {}],
        ),
        ("amount<50", [{"amount": 49}], [{"amount": 50}, {"amount": None}]),
        ("amount >= 0.1", [{"amount": 0.1}, {"amount": 10**400}], [{"amount": 0.09}]),
        ("amount > 1", [{"amount": 2}], [{"amount": 1}]),
        ("flag == true", [{"flag": True}], [{"flag": 1}, {"flag": "true"}]),
        ("count == 1", [{"count": 1}, {"count": 1.0}], [{"count": True}, {"count": "1"}]),
        ('to in ["ada", 1, null]', [{"to": "ada"}, {"to": 1}, {"to": None}], [{"to": "Ada"}, {"to": ["ada"]}, {}]),
        (
            "payment/amount <= 5",
            [{"payment": {"amount": 5}}],
            [{"payment/amount": 1}, {"payment": 3}, {"payment": [5]}],
        ),
    ],
)
def test_a_limit_is_data(limit: str, covered: list[dict[str, object]], uncovered: list[dict[str, object]]) -> None:
    """A limit compares JSON with JSON: an argument of another type, or none, is not covered, and `true` is not 1."""
    grant = Grant(arguments=[limit])
    assert Grant(arguments=grant.arguments) == grant
    covers = [grant.covers(freeze_object(arguments), NOW) for arguments in (*covered, *uncovered)]
    # An integer of that size is no amount.
    expected = [arguments.get("amount") != 10**400 for arguments in covered] + [False] * len(uncovered)
    assert covers == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"arguments": ["amount"]},
        {"arguments": ["amount <= __import__('os')"]},
        {"arguments": ["amount <= true"]},
        {"arguments": ['amount <= "5"']},
        {"arguments": ["to in 5"]},
        {"arguments": ["to == [1]"]},
        {"arguments": ["to in [[1]]"]},
        {"arguments": ["amount != 5"]},
        {"arguments": 5},
        {"arguments": {"amount": 5}},
        {"arguments": [f"to == {'a' * 10_000!r}"]},
        {"arguments": ["amount <= 5"] * 101},
        {"uses": 0},
        {"uses": True},
        {"uses": 1.5},
        {"total": "amount < 5"},
        {"total": "amount <= -1"},
        {"total": 5},
        {"until": datetime(2026, 1, 1)},  # noqa: DTZ001  # that is the mistake
        {"until": "2026-01-01"},
    ],
)
def test_a_wrong_grant_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    """A limit that cannot be read says how it is written."""
    with pytest.raises(InvalidParameter):
        Grant(**wrong)


async def test_a_grant_ends_at_its_time() -> None:
    """The time is that of the loop's clock; at the very time, the grant has ended."""
    journal, clock = MemoryJournal(), ManualClock()
    until = clock.now() + timedelta(hours=1)
    await give(journal, Grant(until=until))
    for seconds, waits in ((3599, False), (3600, True)):
        ledger = Ledger()
        moved = ManualClock(clock.now() + timedelta(seconds=seconds))
        state = await payer(journal, ledger, pay(1)).replace(clock=moved).execute("Pay.")
        assert bool(state.pending) is waits
        assert bool(ledger.paid) is not waits


async def test_a_revoked_grant_lets_no_call_through() -> None:
    """After the revocation, calls wait again."""
    journal = MemoryJournal()
    given = await give(journal, Grant())
    revoked = await journal.update_grant(given.id, lambda state: state.revoke(NOW, "eve"))
    assert revoked is not None
    assert (revoked.status(NOW), revoked.revoked_by) == ("revoked", "eve")
    assert (await payer(journal, Ledger(), pay(1)).execute("Pay.")).pending


async def _pay(amount: float, to: str = "ada") -> str:
    """Pay somebody."""
    return f"{to} got {amount}"


async def _pay_more(amount: float, to: str = "ada", currency: str = "EUR") -> str:
    """Pay somebody."""
    return f"{to} got {amount} {currency}"


CHANGED: dict[str, Tool] = {
    "nothing": tool(name="pay")(_pay),
    "its description": tool(name="pay", description="Pay anybody.")(_pay),
    "its parameters": tool(name="pay")(_pay_more),
    "its effect": tool(name="pay", effect="idempotent")(_pay),
    "its egress": tool(name="pay", egress=True)(_pay),
}


@pytest.mark.parametrize("change", CHANGED)
async def test_a_changed_definition_ends_a_grant(change: str) -> None:
    """A description, a parameter or an effect that the person did not see makes it another tool."""
    journal = MemoryJournal()
    await give(journal, Grant())
    state = await payer(journal, Ledger(), pay(1)).replace(tools=[CHANGED[change]]).execute("Pay.")
    assert bool(state.pending) is (change != "nothing")


async def test_a_group_is_a_part_of_the_definition() -> None:
    """The tool of another group is another tool, although it looks the same."""
    journal = MemoryJournal()
    await give(journal, Grant())
    grouped = Ensemble("bank", [CHANGED["nothing"]])
    assert (await payer(journal, Ledger(), pay(1)).replace(tools=[grouped]).execute("Pay.")).pending


async def test_no_grant_is_for_code() -> None:
    """A call of a tool that runs code waits each time, and its approval cannot come with a grant."""

    @tool(runs_code=True)
    async def shell(command: str) -> str:
        """Run a command."""
        return command

    guard = AskUnlessGranted(RequireApproval("shell"))
    calls = [ToolCall("call", "shell", f'{{"command": "{command}"}}') for command in ("ls", "df")]
    model = ScriptedInference(*calls, "done")
    loop = AgentLoop.for_model(model, tools=[shell], interceptors=[guard], journal=MemoryJournal())
    state = await loop.execute("Go.")
    (pending,) = state.pending
    assert not pending.grantable
    with pytest.raises(DecisionError, match="runs code"):
        await loop.resume(state, {pending.key: approve(pending.digest, grant=Grant())})
    state = await loop.resume(state, {pending.key: approve(pending.digest)})
    assert state.pending


async def test_a_grant_needs_somebody_who_keeps_it() -> None:
    """Without a journal nothing starts; and a call that a plain RequireApproval asks about takes no grant."""
    guarded = payer(None, Ledger(), pay(1))
    with pytest.raises(ConfigurationError, match="journal"):
        await guarded.execute("Pay.")
    journal = MemoryJournal()
    plain = payer(journal, Ledger(), pay(1)).replace(interceptors=[RequireApproval("pay")])
    state = await plain.execute("Pay.")
    (call,) = state.pending
    with pytest.raises(DecisionError, match="AskUnlessGranted"):
        await plain.resume(state, {call.key: approve(call.digest, grant=Grant())})
    assert await journal.grants() == []
    with pytest.raises(ConfigurationError, match="RequireApproval"):
        AskUnlessGranted("pay")
    with pytest.raises(ConfigurationError, match="principal"):
        AskUnlessGranted(RequireApproval("pay"), by="user")  # type: ignore[arg-type]


async def test_a_grant_is_given_before_any_call_waits() -> None:
    """A program gives a grant for a tool as it is now; the limits are those of the value, and code gets none."""
    journal, clock, ledger = MemoryJournal(), ManualClock(), Ledger()
    given = await give_grant(journal, ledger.tool, Grant(arguments=["amount <= 20"], uses=1), by="boss", clock=clock)
    assert (given.owner, given.by, given.key, given.given_at) == ("", "boss", "", clock.now())
    states = [await payer(journal, ledger, pay(amount)).execute("Pay.") for amount in (21, 20, 20)]
    assert [bool(state.pending) for state in states] == [True, False, True]
    assert (await only_grant(journal)).used == 1

    @tool(runs_code=True)
    async def shell(command: str) -> str:
        """Run a command."""
        return command

    refused: list[tuple[Callable[[], Awaitable[object]], str]] = [
        (lambda: give_grant(journal, shell, Grant()), "runs code"),
        (lambda: give_grant(None, ledger.tool, Grant()), "kept in a journal"),
        (lambda: give_grant(journal, ledger.tool, Grant(), owner="x" * 201), "at most 200 characters"),
    ]
    for wrong, match in refused:
        with pytest.raises(ConfigurationError, match=match):
            await wrong()
    assert len(await journal.grants()) == 1


async def test_a_grant_of_one_owner_does_not_serve_another() -> None:
    """Each owner has its own grants, whatever the journal and the tool."""
    journal = MemoryJournal()

    def by(state: AgentState) -> str:
        return state.context.system_prompt

    await give(journal, Grant(), by=by)
    for prompt, waits in (("", False), ("red", True)):
        loop = payer(journal, Ledger(), pay(1), by=by).replace(system_prompt=prompt)
        assert bool((await loop.execute("Pay.")).pending) is waits


async def test_a_grant_is_for_a_principal_of_its_tenant_unless_it_is_shared_by_the_tenant() -> None:
    """The same name in another tenant is somebody else; `by="tenant"` shares a grant among all of a tenant."""
    for shared, served in (("principal", {("acme", "ada")}), ("tenant", {("acme", "ada"), ("acme", "ben")})):
        journal = MemoryJournal()
        await give_as(journal, shared, "acme", "ada")
        found = set()
        for tenant in ("acme", "acme/", "acme/ada", ""):
            for name in ("ada", "ben"):
                execution_id = f"{tenant} {name}"
                asked = asked_by(tenant, name, execution_id)
                state = await payer(journal, Ledger(), pay(1), by=shared).execute(asked, execution_id=execution_id)
                found |= set() if state.pending else {(tenant, name)}
        assert found == served
        assert (await payer(journal, Ledger(), pay(1), by=shared).execute("Pay.")).pending


def asked_by(tenant: str, name: str, execution_id: str) -> AgentState:
    """Return a state as a principal has asked for an execution."""
    return with_request(AgentState.start("Pay."), execution_id, Identity(name, tenant=tenant))


async def give_as(journal: MemoryJournal, by: Any, tenant: str, name: str) -> None:
    """Give a grant without limits to a principal."""
    loop = payer(journal, Ledger(), pay(1), by=by)
    state = await loop.execute(asked_by(tenant, name, "given"), execution_id="given")
    await loop.resume(state, {call.key: approve(call.digest, grant=Grant()) for call in state.pending})


# --- no use is counted twice, and none is lost --------------------------------------------------------------------


async def test_a_call_that_did_not_begin_gives_its_use_back() -> None:
    """An interceptor further inside blocks the call, or changes it so that it is not covered: nothing was used."""
    for change in (lambda point: point.block("no"), lambda point: point.with_arguments({"amount": 99})):
        journal = MemoryJournal()
        await give(journal, Grant(arguments=["amount <= 50"], uses=1))
        ledger = Ledger()
        loop = payer(journal, ledger, pay(5)).with_interceptors(Inside(change))
        await loop.execute("Pay.")
        assert ledger.paid == []
        state = await only_grant(journal)
        assert (state.used, state.holds) == (0, ())


class Inside(Interceptor):
    """Changes calls further inside."""

    priority = -1000

    def __init__(self, change: Callable[[BeforeToolUse], BeforeToolUse]) -> None:
        self._change = change

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return self._change(point) if point.arguments["amount"] == 5 else point


async def test_concurrent_executions_share_the_uses(db: str) -> None:
    """Of 12 executions through two journals on one database, as many calls run as the grant allows; the others wait."""
    journals = [open_journal(db), open_journal(db)]
    try:
        await give(journals[0], Grant(uses=5, total="amount <= 100"))
        ledger = Ledger()
        runs = [payer(journals[number % 2], ledger, pay(7)).execute("Pay.") for number in range(12)]
        states = await asyncio.gather(*runs)
        assert len(ledger.paid) == 5
        assert sum(bool(state.pending) for state in states) == 7
        state = await only_grant(journals[1])
        assert (state.used, state.spent, state.holds) == (5, "35.0" if "." in state.spent else "35", ())
    finally:
        for journal in journals:
            await journal.aclose()


class DyingJournal(MemoryJournal):
    """A journal whose process dies at one of its writes: before it is stored, or after it and before the answer.

    Attributes:
        left: the number of writes until then; None while it does not die.
        is_late: whether the last write is stored.
        is_dead: whether it has died, and answers nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.is_late = self.is_dead = False

    async def _write(self, write: Callable[[], Any]) -> Any:
        if self.is_dead:
            raise JournalError("dead")
        if self.left == 0:
            self.is_dead = True
            if self.is_late:
                await write()
            raise JournalError("it dies")
        self.left = None if self.left is None else self.left - 1
        return await write()

    async def append_using(self, *arguments: Any) -> None:
        await self._write(lambda: MemoryJournal.append_using(self, *arguments))

    async def update_grant(self, *arguments: Any) -> Any:
        return await self._write(lambda: MemoryJournal.update_grant(self, *arguments))

    async def add_grant(self, *arguments: Any) -> None:
        await self._write(lambda: MemoryJournal.add_grant(self, *arguments))

    async def revive(self) -> None:
        """End the claims of the process that has died."""
        await self.aclose()
        self.left, self.is_dead = None, False


@pytest.mark.unreplayed
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_death_at_any_write_neither_loses_nor_repeats_a_use(*, is_late: bool) -> None:
    """After the recovery, the uses are the intents that name the grant, and the calls that ran, each once."""
    deaths = 0
    for left in range(60):
        journal, ledger = DyingJournal(), Ledger()
        await give(journal, Grant(uses=3, arguments=["amount <= 50"]))
        loop = payer(journal, ledger, pay(1, 60), pay(2, 3), pay(4))
        journal.left, journal.is_late = left, is_late
        with suppress(JournalError):
            await to_end(loop)
        if not journal.is_dead:
            break
        deaths += 1
        await journal.revive()
        await to_end(loop)
        grant = await only_grant(journal)
        assert (grant.used, grant.holds) == (3, ()), left
        named = [each.intent.key for each in await recorded_calls(journal, "run") if each.intent.grant]
        assert len(set(named)) == 3
        assert Counter(ledger.paid) <= Counter([1.0, 60.0, 2.0, 3.0, 4.0])
    assert deaths > 15


async def to_end(loop: AgentLoop) -> None:
    """Run or recover an execution, and approve what waits."""
    state = await loop.get_or_start("Pay.", "run")
    while state.pending:
        state = await loop.resume(
            state, {call.key: approve(call.digest) for call in state.pending if not call.waits_for}
        )
    assert state.final_text == "done"


async def recorded_calls(journal: Any, execution_id: str) -> list[RecordedCall]:
    """Return the calls whose intents are recorded."""
    records = await journal.read(execution_id)
    return [read_intent(parse_json(each.body)) for each in records if each.kind is RecordKind.CALL_INTENT]


async def test_a_fork_uses_the_grant_for_what_it_runs_itself() -> None:
    """Calls that a fork reuses are not counted again; a call that it makes is, once."""
    journal, ledger = MemoryJournal(), Ledger()
    await give(journal, Grant(uses=3))
    loop = payer(journal, ledger, pay(1), pay(2))
    state = await loop.execute("Pay.", execution_id="run")
    assert ledger.paid == [1, 2]
    reusing = await fork(journal, "run", 1)
    assert (await loop.recover(reusing)).final_text == "done"
    assert ledger.paid == [1, 2]
    assert ((await only_grant(journal)).used, (await only_grant(journal)).holds) == (2, ())
    for amount, waits in ((8, False), (9, True)):
        other = payer(journal, ledger, pay(1), pay(amount))
        assert bool((await other.recover(await fork(journal, "run", 1))).pending) is waits
    assert ledger.paid == [1, 2, 8]
    assert (await only_grant(journal)).used == 3
    assert state.final_text == "done"


async def test_a_replay_uses_no_grant() -> None:
    """What was let through is in the records: a replay is equal, and counts nothing."""
    journal, ledger = MemoryJournal(), Ledger()
    await give(journal, Grant(arguments=["amount <= 50"]))
    loop = payer(journal, ledger, pay(1, 60), pay(2))
    state = await loop.execute("Pay.", execution_id="run")
    await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    before = await only_grant(journal)
    result = await replay(journal, "run", loop)
    assert result.divergence is None
    assert await only_grant(journal) == before
    assert before.used == 2


# --- against an oracle ----------------------------------------------------------------------------------------------


def oracle(grant: dict[str, Any], used: int, spent: Fraction, call: Mapping[str, Any], minute: int) -> Fraction | None:
    """Return what a call adds to the total if the grant covers it, written without the classes of the package."""
    amount, to = call.get("amount"), call.get("to")
    number = Fraction(str(amount)) if type(amount) in {int, float} else None
    rules = [
        grant["minutes"] is None or minute < grant["minutes"],
        grant["most"] is None or (number is not None and number <= Fraction(str(grant["most"]))),
        grant["names"] is None or to in grant["names"],
        grant["uses"] is None or used < grant["uses"],
        grant["sum"] is None or (number is not None and number >= 0 and spent + number <= grant["sum"]),
    ]
    added = Fraction(0) if grant["sum"] is None else number
    return added if all(rules) else None


def random_grant(source: random.Random) -> dict[str, Any]:
    """Return the terms of a grant."""
    return {
        "most": source.choice([None, None, 10, 20.5, 40]),
        "names": source.choice([None, None, ["ada"], ["ada", "ben"]]),
        "uses": source.choice([None, 1, 2, 5]),
        "sum": source.choice([None, None, 0, 30, 75]),
        "minutes": source.choice([None, None, 5, 30]),
    }


def as_grant(terms: dict[str, Any], start: datetime) -> Grant:
    """Return the grant of these terms."""
    arguments = [] if terms["most"] is None else [f"amount <= {terms['most']}"]
    arguments += [] if terms["names"] is None else [f"to in {format_json(terms['names']).decode()}"]
    return Grant(
        arguments=arguments,
        uses=terms["uses"],
        total="" if terms["sum"] is None else f"amount <= {terms['sum']}",
        until=None if terms["minutes"] is None else start + timedelta(minutes=terms["minutes"]),
    )


def test_ten_thousand_grants_agree_with_an_oracle() -> None:
    """For random limits and calls, held, begun, given back and revoked in any order, what is let through is what the rules say."""
    source = random.Random(40)  # the same cases each time
    let_through = 0
    for number in range(10_000):
        terms, minute, used, spent, is_revoked = random_grant(source), 0, 0, Fraction(0), False
        state = GrantState(id="g", grant=as_grant(terms, NOW), tool="pay", definition="", given_at=NOW)
        held: dict[str, Fraction] = {}
        for index in range(source.randrange(1, 12)):
            minute += source.choice([0, 0, 0, 1, 7])
            now, key = NOW + timedelta(minutes=minute), f"run/{index}/0"
            match source.random():
                case roll if roll < 0.05:
                    state, is_revoked = state.revoke(now), True
                case roll if roll < 0.25 and held:
                    key = source.choice(list(held))
                    state, amount = state.use(key).use(key), held.pop(key)
                    used, spent = used + 1, spent + amount
                case roll if roll < 0.35 and held:
                    key = source.choice(list(held))
                    state = state.release(key)
                    del held[key]
                case _:
                    call = {
                        "amount": source.choice([0, 0.1, 0.2, 3, 10, 20.5, 39.99, -1, True, "5", None]),
                        "to": source.choice(["ada", "ben", "eve"]),
                    }
                    let = oracle(terms, used + len(held), spent + sum(held.values()), call, minute)
                    use = GrantUse(
                        grant_id="g", key=key, amount=str(state.grant.amount_of(freeze_object(call)) or 0), at=now
                    )
                    state = state.hold(use, freeze_object(call), now)
                    assert state.holds_for(key) is (let is not None and not is_revoked), (number, terms, call)
                    if state.holds_for(key):
                        held[key], let_through = let or Fraction(0), let_through + 1
            state = from_json(to_json(state), GrantState)
            assert (state.used, Fraction(state.spent), len(state.holds)) == (used, spent, len(held))
    assert let_through > 10_000


CASES = [
    pytest.param(60, id="60"),
    pytest.param(10_000, id="10000", marks=[pytest.mark.heavy, pytest.mark.timeout(3_600)]),
]


@pytest.mark.unreplayed
@pytest.mark.parametrize("count", CASES)
async def test_executions_agree_with_an_oracle(count: int) -> None:
    """Random grants for one tool, and executions with random calls in parallel and in turn: what runs is what the rules say."""
    source = random.Random(7)  # the same cases each time
    ran = waited = 0
    for number in range(count):
        journal, clock = MemoryJournal(), ManualClock()
        terms = random_grant(source)
        loop = payer(journal, Ledger(), pay(1)).replace(clock=clock)
        state = await loop.execute("Pay.")
        grant = as_grant(terms, clock.now())
        await loop.resume(state, {call.key: approve(call.digest, grant=grant) for call in state.pending})
        used, spent, start = 0, Fraction(0), clock.now()
        for minute in sorted(source.choices(range(40), k=3)):
            calls = [(source.choice([0, 3, 9.75, 10, 21, 45]), source.choice(["ada", "eve"])) for _ in range(3)]
            answer = [each for amount, to in calls for each in pay(amount, to=to)]
            answer = [evolve(each, id=f"call {index}") for index, each in enumerate(answer)]
            later = ManualClock(start + timedelta(minutes=minute))
            state = await payer(journal, Ledger(), answer).replace(clock=later).execute("Pay.")
            waiting = {call.key.rsplit("/", 1)[1] for call in state.pending if not call.waits_for}
            for index, (amount, to) in enumerate(calls):
                added = oracle(terms, used, spent, {"amount": amount, "to": to}, minute)
                assert (str(index) in waiting) is (added is None), (number, terms, calls, index)
                used, spent = (used, spent) if added is None else (used + 1, spent + added)
            ran, waited = ran + 3 - len(waiting), waited + len(waiting)
            found = await only_grant(journal)
            assert (found.used, Fraction(found.spent), found.holds) == (used, spent, ())
    assert min(ran, waited) > count


# --- the stores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_journals_keep_their_laws(name: str, tmp_path: Path) -> None:
    """The journals of the package pass the kit of their contract."""
    numbers = count()

    def create() -> CanKeepGrants:
        path = tmp_path / f"{next(numbers)}.db"
        return MemoryJournal() if name == "memory" else SqliteJournal(path, synchronous="normal")

    GrantKit(create, examples=3 if name == "sqlite" else 20).check_all()


def test_postgres_keeps_the_laws_of_grants(postgres_url: str) -> None:
    """A journal in PostgreSQL passes the kit; each one has a schema of its own."""
    numbers = count()
    GrantKit(lambda: PostgresJournal(postgres_url, schema=f"store_{next(numbers)}"), examples=3).check_all()


# --- processes that are killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kills", [pytest.param(3, id="3"), pytest.param(24, id="24", marks=pytest.mark.heavy)])
def test_killed_processes_use_a_grant_once_for_each_call(kills: int, db: str, tmp_path: Path) -> None:
    """Of two processes that pay at the same time, one is killed again and again: what is counted is what is recorded, and no more than allowed."""
    ledger, uses = tmp_path / "ledger", 11
    ledger.touch()
    asyncio.run(prepare(db, uses))
    source, names = random.Random(kills), ("first", "second")
    children = {name: start_process(db, ledger, name) for name in names}
    try:
        for _ in range(kills):
            name = source.choice(names)
            time_to_live = source.uniform(0.0, 1.2)
            with suppress(subprocess.TimeoutExpired):
                children[name].wait(time_to_live)
            children[name].kill()
            children[name].communicate()
            children[name] = start_process(db, ledger, name)
        outputs = [children[name].communicate(timeout=LONGEST)[0] for name in names]
    finally:
        for child in children.values():
            child.kill()
            child.communicate()
    assert all(output.endswith(("waits\n", "done\n")) for output in outputs), outputs
    assert any(output.endswith("waits\n") for output in outputs), "there are more calls than uses"
    state, named = asyncio.run(read_uses(db, names))
    paid = set(ledger.read_text().split())
    assert (state.used, state.holds) == (uses, ())
    assert len(set(named)) == uses
    assert len(paid) == uses


def start_process(db: str, ledger: Path, name: str) -> subprocess.Popen[str]:
    """Start a process that runs or recovers an execution."""
    command = [sys.executable, "-m", "tests.policies.grant_process", db, str(ledger), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


async def prepare(db: str, uses: int) -> None:
    """Give a grant for the tool of the processes."""
    journal = open_journal(db)
    call = ToolCall("1", "pay", '{"amount": 1, "note": "given"}')
    loop = grant_process.payer(journal, os.devnull, [[call], "done"])
    state = await loop.execute("Pay.")
    grant = Grant(uses=uses, total=f"amount <= {uses + 3}")
    await loop.resume(state, {call.key: approve(call.digest, grant=grant) for call in state.pending})
    await journal.aclose()


async def read_uses(db: str, names: Sequence[str]) -> tuple[GrantState, list[str]]:
    """Return the grant, and the keys of the calls whose intents name it."""
    journal = open_journal(db)
    state = await only_grant(journal)
    named = [each.intent.key for name in names for each in await recorded_calls(journal, name) if each.intent.grant]
    await journal.aclose()
    return state, named
