"""The keys of descriptors, and what stands under each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Any, TypeAlias

from attrs import evolve

from agentloop.contracts.tool import DEFAULT_POLICY, ToolPolicy
from agentloop.errors import NotJson
from agentloop.tools.ensembles.overrides import closest
from agentloop.values.json import freeze
from agentloop.values.policies import CachePolicy, CircuitPolicy, DeduplicatePolicy, RateLimit, RetryPolicy
from agentloop.values.tool_calls import Effect

Check: TypeAlias = Callable[[Any], str]
"""Says what is wrong with a value; empty when nothing is."""

EXPECTED: Mapping[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a table",
    list: "a list",
    datetime: "a date",
    date: "a date",
    time: "a time",
}
"""The types in words."""


def is_of(*types: type) -> Check:
    """Make a check of the type; true and false are no numbers here.

    Args:
        *types: the types; the first one is named in the message.
    """

    def check(value: Any) -> str:
        wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
        return f"it has to be {EXPECTED[types[0]]}, not {in_words(value)}" if wrong else ""

    return check


def is_list_of_texts(value: Any) -> str:
    """Check that a value is a list of texts."""
    return is_of(list)(value) or next((f"each item {told[3:]}" for one in value if (told := is_of(str)(one))), "")


def in_words(value: object) -> str:
    """Say of what type a value is."""
    return EXPECTED.get(type(value), repr(value))


DEDUPLICATOR = "deduplicator"
"""The key for the name of a deduplicator that the program gives."""
_NUMBER, _COUNT, _TEXT = is_of(float, int), is_of(int), is_of(str)
_TABLES: Mapping[str, tuple[type, Mapping[str, Check]]] = {
    "retry": (
        RetryPolicy,
        {
            "max_attempts": _COUNT,
            "initial_wait": _NUMBER,
            "max_wait": _NUMBER,
            "on": is_list_of_texts,
            "not_on": is_list_of_texts,
        },
    ),
    "cache": (CachePolicy, {"seconds": _NUMBER, "max_entries": _COUNT}),
    "rate_limit": (
        RateLimit,
        {"calls": _COUNT, "per": _NUMBER, "burst": _COUNT, "max_wait": _NUMBER, "by": _TEXT},
    ),
    "circuit": (
        CircuitPolicy,
        {"failures": _COUNT, "seconds": _NUMBER, "probes": _COUNT, "dependency": _TEXT},
    ),
    "deduplicate": (
        DeduplicatePolicy,
        {"seconds": _NUMBER, "steps": _COUNT, "across_executions": is_of(bool)},
    ),
}
"""Values that are tables: the class, and the checks of what stands in it."""


def policy_value(key: str, value: Any) -> Any:
    """Return the value of `ToolPolicy` that stands under a key; check it first."""
    return _TABLES[key][0](**value) if key in _TABLES and isinstance(value, dict) else value


def policy_values(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `ToolPolicy` among what is said under keys that are checked.

    The deduplicator of the program, if one is said, decides within what `deduplicate` says.
    """
    values = {key: policy_value(key, value) for key, value in said.items() if key in POLICY_KEYS}
    if DEDUPLICATOR in said:
        asked = ToolPolicy(deduplicate=values.get("deduplicate")).deduplicate or DeduplicatePolicy()
        values["deduplicate"] = evolve(asked, by=said[DEDUPLICATOR])
    return values


def _single(key: str, check: Check) -> Check:
    """Check the type, and then as `ToolPolicy` itself does."""

    def whole(value: Any) -> str:
        problem = check(value)
        if not problem and isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            problem = f"it has to be more than 0, not {value}"
        return problem or _refused(key, value)

    return whole


def _table(key: str, checks: Mapping[str, Check]) -> Check:
    def whole(value: Any) -> str:
        problem = is_of(dict)(value)
        if problem:
            return problem
        for name, one in value.items():
            if name not in checks:
                return f"there is no {name!r} in it{closest(name, checks)}"
            problem = checks[name](one)
            if problem:
                return f"{name}: {problem}"
        return _refused(key, value)

    return whole


def _refused(key: str, value: Any) -> str:
    try:
        changed: dict[str, Any] = {key: policy_value(key, value)}
        evolve(DEFAULT_POLICY, **changed)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _deduplicate(value: Any) -> str:
    if isinstance(value, str):
        return "" if value == "exact" else f"it has to be a table or 'exact', not {value!r}"
    return _table("deduplicate", _TABLES["deduplicate"][1])(value)


POLICY_KEYS: Mapping[str, Check] = {
    "timeout": _single("timeout", _NUMBER),
    "deadline": _single("deadline", _NUMBER),
    "sequential": _single("sequential", is_of(bool)),
    "key": _single("key", _TEXT),
    "max_result_bytes": _single("max_result_bytes", _COUNT),
    **{key: _table(key, checks) for key, (_, checks) in _TABLES.items()},
    "deduplicate": _deduplicate,
}
"""The keys by their names in `ToolPolicy`, with their checks."""


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
