"""The journal of a person's loop."""

from __future__ import annotations

from pathlib import Path

from agentloop.cli.bad_usage import BadUsage
from agentloop.cli.runs_journal import journal_path
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.loop.agent_loop import AgentLoop


def journaled(loop: AgentLoop, given: str | None) -> AgentLoop:
    """Return a loop with the journal that the command speaks of: its own where it has one, else the named one.

    Its own may keep secrets out of what is written; so it is never replaced.

    Args:
        loop: the loop.
        given: what `--journal` says; None when it was left out.

    Raises:
        BadUsage: when it has another journal than the one that is named, or there is none.
    """
    own = loop.journal
    if own is None:
        return loop.with_journal(SqliteJournal(journal_path(given)))
    if given is not None and not (isinstance(own, SqliteJournal) and own.path.resolve() == Path(given).resolve()):
        raise BadUsage(f"the loop has a journal of its own, {own!r}, and --journal names {given}; leave --journal out")
    return loop
