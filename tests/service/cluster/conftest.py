"""Fixtures of clusters: a database of each kind, and the folder of the agents' traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.cluster import agents
from tests.service.cluster.workers import Workers


@pytest.fixture
def db(db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty database of each kind; the agents write beside it."""
    monkeypatch.setenv(agents.FOLDER, str(tmp_path))
    return db


@pytest.fixture
def workers(db: str) -> Iterator[Workers]:
    """Worker processes on the database."""
    started = Workers(db)
    yield started
    started.close()
