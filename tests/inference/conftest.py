"""What the tests of inference share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_proxies_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the proxies and the keys of the machine out of the tests."""
    for name in list(os.environ):
        if name.lower().endswith(("_proxy", "_api_key")):
            monkeypatch.delenv(name)
