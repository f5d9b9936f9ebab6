"""The law suite of journals that keep grants."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta

from attrs import evolve
from hypothesis import strategies as st

from agentloop.contracts.can_journal import Claim
from agentloop.contracts.can_keep_grants import CanKeepGrants, GrantChange
from agentloop.errors import ClaimLost, JournalConflict
from agentloop.testing.journal_bench import INVALID_APPENDS, START, JournalModel, JournalOperation
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.values.grants import Grant, GrantState, GrantUse
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus

_THREADS, _UPDATES = 4, 10
_RUN = "run"
_IDS = ("one", "two", "it's 'é'")
_NAMES = ("", "acme/", "acme/ada", 'a", "b', "it's \ud800 'é'")
_KINDS = ("stored", "conflict", "lost claim", "repeated", "released")
_GIVEN = st.lists(
    st.tuples(st.sampled_from(_IDS), st.sampled_from(_NAMES), st.sampled_from(_NAMES), st.integers(0, 3)), max_size=8
)
_STEPS = st.lists(
    st.tuples(st.sampled_from(_KINDS), st.lists(st.sampled_from(_IDS), min_size=1, max_size=3)), min_size=1, max_size=6
)


class GrantKit(Kit):
    """Checks a journal against the laws of `CanKeepGrants`; a `JournalKit` checks what it keeps of executions.

    Args:
        factory: creates a new, empty journal, which may be used from several threads, each with an event loop of its own.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 36, 43)

    def __init__(self, factory: Callable[[], CanKeepGrants], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanKeepGrants] = checked_factory(factory)

    def law_9(self) -> None:
        """A list has the grants of its owner and its tool alone, in the order in which they were given; the first of an id stays."""
        self.for_all(_GIVEN, lambda given: asyncio.run(self._check_lists(given)))

    def law_36(self) -> None:
        """Each change gets what the previous one returned, whole and in order; concurrent changes are made one by one."""
        amounts = st.lists(st.integers(0, 10**20), max_size=8)
        self.for_all(amounts, lambda each: asyncio.run(self._check_states(each)))
        self._check_threads()

    def law_43(self) -> None:
        """A use is counted if and only if its records are stored, and once."""
        self.for_all(_STEPS, lambda steps: asyncio.run(self._check_uses(steps)))

    async def _check_lists(self, given: Sequence[tuple[str, str, str, int]]) -> None:
        journal, known = self.factory(), dict[str, GrantState]()
        for grant_id, owner, tool, minute in given:
            state = evolve(_state(grant_id), owner=owner, tool=tool, given_at=START + timedelta(minutes=minute))
            await journal.add_grant(state)
            known.setdefault(grant_id, state)
        unknown = await journal.update_grant("another", lambda state: state.revoke(START))
        require(9, unknown is None, f"the update of a grant that was never given returned {unknown}")
        expected = sorted(known.values(), key=lambda state: (state.given_at, state.id))
        for owner_or_all in (None, *_NAMES):
            for tool_or_all in (None, *_NAMES):
                wanted = [
                    each for each in expected if owner_or_all in {None, each.owner} and tool_or_all in {None, each.tool}
                ]
                found = list(await journal.grants(owner=owner_or_all, tool=tool_or_all))
                asked = f"owner={owner_or_all!r}, tool={tool_or_all!r}"
                require(9, found == wanted, f"the list with {asked} is {found}, and {wanted} was given")
        await journal.aclose()

    async def _check_states(self, amounts: Sequence[int]) -> None:
        journal, expected = self.factory(), _state(_IDS[-1])
        await journal.add_grant(expected)
        for number, amount in enumerate(amounts):
            use = GrantUse(grant_id=expected.id, key=f"run/{number}/0", amount=str(amount), at=START)
            received: list[GrantState] = []

            def change(state: GrantState, use: GrantUse = use, received: list[GrantState] = received) -> GrantState:
                received.append(state)
                return state.hold(use, EMPTY_OBJECT, START).use(f"run/{int(use.key.split('/')[1]) - 1}/0")

            after = await journal.update_grant(expected.id, change)
            require(36, received[-1] == expected, f"a change got {received[-1]}, and {expected} was stored before")
            expected = change(expected)
            require(36, after == expected, f"the update returned {after} after a change to {expected}")
        found = list(await journal.grants())
        require(36, found == [expected], f"the grants are {found} after {expected}")
        await journal.aclose()

    def _check_threads(self) -> None:
        """Check that no change is lost that tasks of several threads make at the same time."""
        journal = self.factory()
        asyncio.run(_add(journal, "one"))

        async def use_many(thread: int) -> None:
            await asyncio.gather(*[_use(journal, f"{thread}/{each}") for each in range(_UPDATES)])

        threads = [
            threading.Thread(target=lambda number=number: asyncio.run(use_many(number))) for number in range(_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        used = [state.used for state in asyncio.run(_read(journal))]
        require(36, used == [_THREADS * _UPDATES], f"of {_THREADS * _UPDATES} changes, {used} took effect")

    async def _check_uses(self, steps: Sequence[tuple[str, Sequence[str]]]) -> None:
        journal, model, counted = self.factory(), JournalModel(), Counter[str]()
        for grant_id in _IDS:
            await _add(journal, grant_id)
        claim = await journal.claim(_RUN)
        for number, (kind, ids) in enumerate(steps):
            uses = [_use_of(grant_id, f"{number}/{index}", claim) for index, grant_id in enumerate(ids)]
            for use in uses:
                await journal.update_grant(use.grant_id, _holding(use))
            claim = await self._append(journal, model, claim, kind, uses)
            counted.update(ids if kind in {"stored", "repeated"} else ())
            found = {state.id: state.used for state in await journal.grants()}
            expected = {grant_id: counted[grant_id] for grant_id in _IDS}
            require(43, found == expected, f"after an append that was {kind}, the uses are {found}, not {expected}")
            records, stored = list(await journal.read(_RUN)), model.records.get(_RUN, [])
            require(
                43,
                records == stored,
                f"after an append that was {kind}, {len(records)} records are stored, not {len(stored)}",
            )
        await claim.release()
        await journal.aclose()

    async def _append(
        self, journal: CanKeepGrants, model: JournalModel, claim: Claim, kind: str, uses: Sequence[GrantUse]
    ) -> Claim:
        """Append a record that uses grants, in one of the ways of `_KINDS`; return the claim that is held then."""
        head, records = _next(model)
        if kind == "conflict":
            await _refused(journal, *INVALID_APPENDS["other"](head, records), claim, uses)
            return claim
        if kind == "lost claim":
            await claim.release()
            later = await journal.claim(_RUN)
            await _refused(journal, head, records, claim, uses)
            return later
        if kind == "released":
            for use in uses:
                await journal.update_grant(use.grant_id, _releasing(use))
        await journal.append_using(head, records, claim, uses)
        model.add(head, records)
        if kind == "repeated":
            head, records = _next(model)
            await journal.append_using(head, records, claim, uses)
            model.add(head, records)
        return claim


def _next(model: JournalModel) -> tuple[ExecutionHead, list[JournalRecord]]:
    return model.next_records(JournalOperation("append", _RUN, ["{}"], ExecutionStatus.IN_PROGRESS, 0))


async def _refused(
    journal: CanKeepGrants,
    head: ExecutionHead,
    records: Sequence[JournalRecord],
    claim: Claim,
    uses: Sequence[GrantUse],
) -> None:
    """Append what a journal has to refuse."""
    is_refused = False
    try:
        await journal.append_using(head, records, claim, uses)
    except (JournalConflict, ClaimLost):
        is_refused = True
    require(43, is_refused, "records were stored that do not extend the chain, or under a claim that is lost")


def _state(grant_id: str) -> GrantState:
    return GrantState(id=grant_id, grant=Grant(), tool="pay", definition="", given_at=START)


def _use_of(grant_id: str, name: str, claim: Claim) -> GrantUse:
    return GrantUse(grant_id=grant_id, key=f"{_RUN}/{name}", execution_id=_RUN, token=claim.token, at=START)


def _holding(use: GrantUse) -> GrantChange:
    return lambda state: state.hold(use, EMPTY_OBJECT, START)


def _releasing(use: GrantUse) -> GrantChange:
    return lambda state: state.release(use.key)


async def _add(journal: CanKeepGrants, grant_id: str) -> None:
    await journal.add_grant(_state(grant_id))


async def _read(journal: CanKeepGrants) -> Sequence[GrantState]:
    return await journal.grants()


async def _use(journal: CanKeepGrants, key: str) -> None:
    """Let a call through, and count its use, in two changes."""
    use = GrantUse(grant_id="one", key=key, at=START)
    await journal.update_grant("one", lambda state: state.hold(use, EMPTY_OBJECT, START))
    await journal.update_grant("one", lambda state: state.use(key))
