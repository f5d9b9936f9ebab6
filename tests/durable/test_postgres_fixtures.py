"""The PostgreSQL of the tests."""

from __future__ import annotations

import psycopg
import pytest

from tests.postgres import PostgresServer, TcpProxy, cut_connections, run_sql


def test_each_test_has_an_empty_database(postgres_url: str) -> None:
    """The database of a test has no tables."""
    assert run_sql(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
    run_sql(postgres_url, "CREATE TABLE a (b text)")


def test_connections_can_be_cut(postgres_url: str) -> None:
    """A terminated connection raises at its next statement."""
    with psycopg.connect(postgres_url) as connection:
        assert cut_connections(postgres_url) == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_the_proxy_forwards_cuts_and_refuses(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """What the proxy cuts is lost to the client, and after it has healed a new connection works."""
    url = postgres_proxy.url(postgres_url)
    assert run_sql(url, "SELECT 7") == [(7,)]
    with psycopg.connect(url) as connection:
        postgres_proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        run_sql(url, "SELECT 7")
    postgres_proxy.heal()
    assert run_sql(url, "SELECT 7") == [(7,)]


def test_a_server_of_its_own_survives_a_crash(own_postgres: PostgresServer) -> None:
    """What was committed is there after the server was stopped at once and started again."""
    run_sql(own_postgres.url, "CREATE TABLE a AS SELECT 7 AS b")
    own_postgres.stop("immediate")
    with pytest.raises(psycopg.OperationalError):
        run_sql(own_postgres.url, "SELECT 7")
    own_postgres.start()
    assert run_sql(own_postgres.url, "SELECT b FROM a") == [(7,)]
    own_postgres.close()
    assert not own_postgres.folder.exists()
