"""The keys of descriptors, and what stands under each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from agentloop.errors import NotJson
from agentloop.tools.ensembles.policy_keys import DEDUPLICATOR, POLICY_KEYS
from agentloop.tools.ensembles.toml_types import is_of
from agentloop.tools.ensembles.tool_override import closest
from agentloop.values.json_value import freeze
from agentloop.values.tool_spec import Effect


class Level(Enum):
    """Where a table stands: in a list of ensembles, in a file of its own, or among an ensemble's tools."""

    ENSEMBLE = "ensemble"
    FILE = "file"
    TOOL = "tool"


def _is_json(value: Any) -> str:
    problem = is_of(dict)(value)
    if problem:
        return problem
    try:
        freeze(value)
    except NotJson as error:
        return f"{error}; dates and times are written as text, in quotes"
    return ""


def _is_effect(value: Any) -> str:
    known = [one.value for one in Effect]
    problem = is_of(str)(value)
    return problem or ("" if value in known else f"{value!r} is not an effect{closest(value, known)}")


_COMMON: Mapping[str, Callable[[Any], str]] = {
    "source": is_of(str),
    "use": is_of(str),
    "enabled": is_of(bool),
    "description": is_of(str),
    "defaults": _is_json,
    DEDUPLICATOR: is_of(str),
    **POLICY_KEYS,
}
_ENSEMBLE: Mapping[str, Callable[[Any], str]] = {**_COMMON, "options": _is_json, "tools": is_of(dict)}
KEYS: Mapping[Level, Mapping[str, Callable[[Any], str]]] = {
    Level.ENSEMBLE: _ENSEMBLE,
    Level.FILE: {**_ENSEMBLE, "name": is_of(str)},
    Level.TOOL: {**_COMMON, "schema": _is_json, "effect": _is_effect},
}
"""The keys that a table may have."""


def problem_of(key: str, value: Any) -> str:
    """Say what is wrong with the value of a known key; empty when nothing is."""
    check = next(keys[key] for keys in KEYS.values() if key in keys)
    return check(value)
