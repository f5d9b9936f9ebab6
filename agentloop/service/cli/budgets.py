"""`agentloop budgets`: what the accounts of a journal have spent, and what is left of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from agentloop.contracts.can_keep_accounts import CanKeepAccounts
from agentloop.durable.journal import Journal
from agentloop.service.cli.console import as_one_line, create_console
from agentloop.service.cli.errors import InvalidUsage
from agentloop.service.cli.journals import journal_option, with_journal
from agentloop.service.cli.tables import Cell, Column, print_table
from agentloop.values.accounts import AccountBalance, Spending, SpendingLimit
from agentloop.values.time_and_ids import SystemClock


@click.command()
@journal_option
@click.option("--name", default="", help="Only accounts with this name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def budgets(*, journal_file: str | None, name: str, as_json: bool) -> None:
    """List the budget accounts of a journal: what they have spent, and what is left.

    Example: `agentloop budgets --journal runs.db`.

    `BudgetAccount("support", cost=50, store=journal)` keeps an account. What is unsettled was reserved for requests whose answers never
    came; it counts as spent.
    """
    balances = with_journal(journal_file, _read)
    shown = [balance for balance in balances if name in {"", balance.key.name}]
    if as_json:
        click.echo(json.dumps([_as_json(balance) for balance in shown], indent=2))
    elif shown:
        _print(shown)
    else:
        click.echo("no matching accounts" if name else "no accounts", err=True)


async def _read(journal: Journal) -> Sequence[AccountBalance]:
    if not isinstance(journal, CanKeepAccounts):
        raise InvalidUsage(f"{journal!r} keeps no accounts")
    at = SystemClock().now()
    return [AccountBalance.of(key, state, at) for key, state in await journal.accounts()]


def _as_json(balance: AccountBalance) -> dict[str, object]:
    def amounts(value: Spending | SpendingLimit) -> dict[str, object]:
        return {"tokens": value.tokens, "dollars": value.dollars}

    return {
        "account": balance.key.name,
        "owner": balance.key.owner,
        "period": balance.key.period,
        "limit": amounts(balance.limit),
        "spent": amounts(balance.spent),
        "reserved": amounts(balance.reserved),
        "unsettled": amounts(balance.unsettled),
        "remaining": amounts(balance.remaining),
        "requests": balance.requests,
    }


def _print(balances: Sequence[AccountBalance]) -> None:
    names = ("limit", "spent", "reserved", "unsettled", "left", "requests")
    columns = [Column("account"), Column("owner"), Column("period")]
    columns += [Column(name, is_number=True) for name in names]
    rows = list[list[Cell]]()
    for balance in balances:
        key, limit = balance.key, balance.limit
        amounts = (limit, balance.spent, balance.reserved, balance.unsettled, balance.remaining)
        cells = [_format(amount, limit) for amount in amounts]
        texts = [as_one_line(text) for text in (key.name, key.owner, key.period)]
        rows.append([*texts, *cells, f"{balance.requests:,}"])
    print_table(create_console(), columns, rows)


def _format(amount: Spending | SpendingLimit, limit: SpendingLimit) -> str:
    parts = []
    if limit.dollars is not None:
        parts.append(f"${amount.dollars or 0:,.4f}")
    if limit.tokens is not None:
        parts.append(f"{amount.tokens or 0:,} tokens")
    return ", ".join(parts)
