"""Short forms of the chaos runs; `make chaos` plays them at full length."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS, POSTGRES, SQLITE, Bench, Fault, random_kills, taken_away, terminated_backends
from tests.chaos.fleet import ENGINE, PLAIN
from tests.postgres import PostgresServer

_SEED = 7
_IN_EVERY_RUN = {
    (random_kills, SQLITE, ENGINE),
    (random_kills, POSTGRES, PLAIN),
    (terminated_backends, POSTGRES, ENGINE),
}
_RUNS = [
    pytest.param(
        fault,
        store,
        kind,
        id=f"{fault.name}, {store}, {kind}",
        marks=[] if (fault.run, store, kind) in _IN_EVERY_RUN else [pytest.mark.heavy],
    )
    for fault in FAULTS
    if fault.quick
    # `make chaos` plays each fault with all kinds of workers on both databases.
    for store in (fault.stores if fault.run in {random_kills, taken_away} else fault.stores[:1])
    for kind in (fault.kinds if fault.run is random_kills else [ENGINE])
]


@pytest.mark.parametrize(("fault", "store", "kind"), _RUNS)
def test_nothing_is_lost_or_doubled(fault: Fault, store: str, kind: str, tmp_path: Path) -> None:
    """Whatever happens to workers and database: no effect is lost or doubled, and every doubt is reported."""
    if store != POSTGRES:
        account = fault.run(Bench(tmp_path, store, kind, _SEED, fault.quick))
    else:
        with closing(PostgresServer()) as server:
            account = fault.run(Bench(tmp_path, store, kind, _SEED, fault.quick, server))
    assert account.problems == []
    assert account.executions >= fault.quick
