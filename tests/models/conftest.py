"""Fixtures for the tests of inference."""

from __future__ import annotations

import os
from typing import get_args

import pytest

from agentloop.models import http_client
from agentloop.models.config import Transport


@pytest.fixture(autouse=True)
def _no_proxies_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxies and keys of the machine from the environment."""
    for name in list(os.environ):
        if name.lower().endswith(("_proxy", "_api_key")):
            monkeypatch.delenv(name)


_OVER_THE_WIRE = {
    "test_connections",
    "test_fallback",
    "test_http_edges",
    "test_http_inference",
    "test_kept_connections",
    "test_keys",
    "test_retrying",
    "test_secrecy",
    "test_streaming",
    "test_transfer_limits",
}
"""The modules whose tests run with each transport."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the tests of what goes over the wire run with each transport."""
    if metafunc.module.__name__.rpartition(".")[2] in _OVER_THE_WIRE:
        metafunc.parametrize("transport_name", get_args(Transport), indirect=True)


@pytest.fixture(autouse=True)
def transport_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Make a transport the one that is used by default, whatever is installed."""
    transport: str | None = getattr(request, "param", None)
    if transport == "httptools":
        pytest.importorskip("httptools", reason="needs the extra `fast`")
    if transport is not None:
        monkeypatch.setattr(http_client, "_default_transport", lambda: transport)
    return transport
