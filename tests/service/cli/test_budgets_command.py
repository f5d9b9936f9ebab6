"""`agentloop budgets`: the accounts of money of a journal."""

from __future__ import annotations

import asyncio
import json
from functools import reduce
from typing import TYPE_CHECKING

import pytest

from agentloop.contracts import CanKeepAccounts
from agentloop.durable import open_journal
from agentloop.values import AccountHold, AccountKey, Spending, SpendingLimit

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine

DOLLAR = 10**12
FOREVER, PAST = 2**62, 1


@pytest.fixture
def accounts(db: str) -> str:
    """A database with two accounts of one name, and one that a stranger has named."""

    async def fill() -> None:
        journal = open_journal(db)
        assert isinstance(journal, CanKeepAccounts)
        limit = SpendingLimit(None, 50 * DOLLAR)
        holds = [
            AccountHold("1", Spending(1_000, 12 * DOLLAR), FOREVER),
            AccountHold("2", Spending(10, 3 * DOLLAR), FOREVER),
            AccountHold("3", Spending(10, 2 * DOLLAR), PAST),
        ]
        red, other = AccountKey("support", "red", "2026-11"), AccountHold("1", Spending(700), FOREVER)
        await journal.update_account(
            red, lambda state: reduce(lambda each, hold: each.reserve(hold, limit, 0), holds, state)
        )
        await journal.update_account(red, lambda state: state.settle("1", Spending(900, 10 * DOLLAR)))
        for key in (AccountKey("support", "blue", "2026-11"), AccountKey("\x1b[31mred\nrow")):
            await journal.update_account(key, lambda state: state.reserve(other, SpendingLimit(1_000), 0))
        await journal.aclose()

    asyncio.run(fill())
    return db


def test_the_list_has_what_each_account_has_spent_and_has_left(command_line: CommandLine, accounts: str) -> None:
    """A row has the limit, what is spent, reserved, unsettled and left; text of others cannot change the terminal."""
    result = command_line("budgets", "--journal", accounts)
    assert result.code == 0, result.err
    assert "\x1b" not in result.out
    assert len(result.out.splitlines()) == 4
    (red,) = [line.split() for line in result.out.splitlines() if "red" in line.split()]
    assert red == ["support", "red", "2026-11", "$50.0000", "$10.0000", "$3.0000", "$2.0000", "$35.0000", "1"]


def test_json_has_the_same_of_the_accounts_of_one_name(command_line: CommandLine, accounts: str) -> None:
    """With a name only its accounts are listed, and JSON has tokens and dollars; None is no limit."""
    result = command_line("budgets", "--journal", accounts, "--name", "support", "--json")
    rows = {row["owner"]: row for row in json.loads(result.out)}
    assert set(rows) == {"red", "blue"}
    assert rows["red"]["remaining"] == {"tokens": None, "dollars": 35.0}
    assert rows["red"]["spent"] == {"tokens": 900, "dollars": 10.0}
    assert rows["blue"]["reserved"] == {"tokens": 700, "dollars": 0.0}
    assert (rows["red"]["account"], rows["red"]["period"], rows["red"]["requests"]) == ("support", "2026-11", 1)


def test_a_journal_without_such_accounts_says_so(command_line: CommandLine, accounts: str) -> None:
    """A name that no account has prints a note, and an empty list as JSON; a journal that is not there is an error."""
    result = command_line("budgets", "--journal", accounts, "--name", "other")
    assert (result.code, result.out, result.err.strip()) == (0, "", "no matching accounts")
    assert json.loads(command_line("budgets", "--journal", accounts, "--name", "other", "--json").out) == []
    missing = command_line("budgets", "--journal", "missing.db")
    assert missing.code != 0
    assert "missing.db" in missing.err
