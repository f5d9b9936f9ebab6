"""Fixtures for the tests of inference."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_proxies_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxies and keys of the machine from the environment."""
    for name in list(os.environ):
        if name.lower().endswith(("_proxy", "_api_key")):
            monkeypatch.delenv(name)
