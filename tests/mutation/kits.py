"""The judges of `make mutants MUTANTS=--kits`: a test for each law of each implementation of the package, and nothing else."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentloop.testing.kit import Kit
from tests.testing.laws import implementations

pytestmark = pytest.mark.unmonitored  # the events of some kits are none of an execution

_EXAMPLES = int(os.environ.get("MUTATION_KIT_EXAMPLES", "10"))
_FOLDER = TemporaryDirectory()
_KITS: dict[str, dict[str, Kit]] = defaultdict(dict)
for _name, _kit in implementations(Path(_FOLDER.name), _EXAMPLES):
    _KITS[type(_kit).__name__][_name] = _kit


def _test_of(law: int, kits: Mapping[str, Kit]) -> Callable[[str], None]:
    @pytest.mark.parametrize("name", kits)
    def test(name: str) -> None:
        kits[name].check(law)

    return test


# One test for each law of a kit, with the implementations as its cases: the cases of another law run before a second case of one.
for _kind, _kits in _KITS.items():
    for _law in next(iter(_kits.values())).laws:
        globals()[f"test_{_kind}_law_{_law}"] = _test_of(_law, _kits)
