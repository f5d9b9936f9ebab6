"""Runs written down: what a journal holds, where it is kept, and how an execution goes on from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.journal.chain import JournalFinding as JournalFinding
    from agentloop.journal.chain import VerifiedExecution as VerifiedExecution
    from agentloop.journal.chain import chained as chained
    from agentloop.journal.chain import hash_of as hash_of
    from agentloop.journal.chain import verified as verified
    from agentloop.journal.export import pytest_source as pytest_source
    from agentloop.journal.fixture import Fixture as Fixture
    from agentloop.journal.fixture import FixtureOutcome as FixtureOutcome
    from agentloop.journal.fixture import recording_of as recording_of
    from agentloop.journal.fold import state_at as state_at
    from agentloop.journal.fork_effects import ForkPolicy as ForkPolicy
    from agentloop.journal.forking import fork as fork
    from agentloop.journal.journal import Conversation as Conversation
    from agentloop.journal.journal import Journal as Journal
    from agentloop.journal.memory_journal import MemoryJournal as MemoryJournal
    from agentloop.journal.redaction import Redaction as Redaction
    from agentloop.journal.sqlite.sqlite_journal import SqliteJournal as SqliteJournal
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.journal.chain": "chained hash_of verified JournalFinding VerifiedExecution",
            "agentloop.journal.journal": "Conversation Journal",
            "agentloop.journal.export": "pytest_source",
            "agentloop.journal.fixture": "recording_of FixtureOutcome Fixture",
            "agentloop.journal.fork_effects": "ForkPolicy",
            "agentloop.journal.forking": "fork",
            "agentloop.journal.memory_journal": "MemoryJournal",
            "agentloop.journal.redaction": "Redaction",
            "agentloop.journal.sqlite.sqlite_journal": "SqliteJournal",
            "agentloop.journal.fold": "state_at",
        },
    )
