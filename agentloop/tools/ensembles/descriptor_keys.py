"""The keys of descriptors and the checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Any, TypeAlias

from attrs import evolve

from agentloop.contracts.tool import DEFAULT_POLICY, ToolPolicy
from agentloop.errors import NotJson
from agentloop.tools.ensembles.import_path import suggest_name
from agentloop.values.json import freeze
from agentloop.values.policies import CachePolicy, CircuitPolicy, DeduplicatePolicy, RateLimit, RetryPolicy
from agentloop.values.tool_calls import Effect

Check: TypeAlias = Callable[[Any], str]
"""Returns the problem of a value; empty when there is none."""

DEDUPLICATOR = "deduplicator"
"""The key for the name of a deduplicator that the program passes."""


class TableKind(Enum):
    """The kinds of tables: an ensemble in a list, the file of one ensemble, or a tool of an ensemble."""

    ENSEMBLE = "ensemble"
    FILE = "file"
    TOOL = "tool"


def find_problem(key: str, value: Any) -> str:
    """Return the problem of the value of a known key; empty when there is none."""
    check = next(checks[key] for checks in KEYS.values() if key in checks)
    return check(value)


def policy_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `ToolPolicy` among the values of a table, which have been checked.

    A deduplicator decides which calls are the same, within the limits of `deduplicate`.
    """
    policy = {key: _policy_value(key, value) for key, value in values.items() if key in _POLICY}
    if DEDUPLICATOR in values:
        limits = ToolPolicy(deduplicate=policy.get("deduplicate")).deduplicate or DeduplicatePolicy()
        # A deduplicator without `deduplicate` uses its default limits.
        policy["deduplicate"] = evolve(limits, by=values[DEDUPLICATOR])
    return policy


# --- types ------------------------------------------------------------------------------------------------------

_TYPE_NAMES: Mapping[type, str] = {
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


def describe_type(value: object) -> str:
    """Return the type of a value in words, for messages."""
    return _TYPE_NAMES.get(type(value), repr(value))


def _has_type(*types: type) -> Check:
    """Return a check of the type; true and false are not numbers. The first type is named in the message."""

    def check(value: Any) -> str:
        # bool is a subclass of int.
        is_wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
        return f"it has to be {_TYPE_NAMES[types[0]]}, not {describe_type(value)}" if is_wrong else ""

    return check


_NUMBER, _COUNT, _TEXT, _FLAG = _has_type(float, int), _has_type(int), _has_type(str), _has_type(bool)
_TABLE, _LIST = _has_type(dict), _has_type(list)


def _is_text_list(value: Any) -> str:
    problem = _LIST(value)
    if problem:
        return problem
    item_problem = next(filter(None, map(_TEXT, value)), "")
    return f"each item {item_problem.removeprefix('it ')}" if item_problem else ""


def _is_json(value: Any) -> str:
    problem = _TABLE(value)
    if problem:
        return problem
    try:
        # TOML has dates, JSON does not.
        freeze(value)
    except NotJson as error:
        return f"{error}; dates and times are written as text, in quotes"
    return ""


def _is_effect(value: Any) -> str:
    known = [effect.value for effect in Effect]
    problem = _TEXT(value)
    return problem or ("" if value in known else f"{value!r} is not an effect{suggest_name(value, known)}")


# --- values of the policy ---------------------------------------------------------------------------------------

_POLICY_TABLES: Mapping[str, tuple[type, Mapping[str, Check]]] = {
    "retry": (
        RetryPolicy,
        {
            "max_attempts": _COUNT,
            "initial_wait": _NUMBER,
            "max_wait": _NUMBER,
            "on": _is_text_list,
            "not_on": _is_text_list,
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
        {"seconds": _NUMBER, "steps": _COUNT, "across_executions": _FLAG},
    ),
}
"""The values that are tables: their class, and the checks of their keys."""


def _policy_value(key: str, value: Any) -> Any:
    return _POLICY_TABLES[key][0](**value) if key in _POLICY_TABLES and isinstance(value, dict) else value


def _check_single(key: str, check: Check) -> Check:
    """Return a check of the type, of the sign and by `ToolPolicy` itself."""

    def check_value(value: Any) -> str:
        problem = check(value)
        if not problem and isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
            problem = f"it has to be more than 0, not {value}"
        return problem or _check_policy(key, value)

    return check_value


def _check_table(key: str, checks: Mapping[str, Check]) -> Check:
    """Return a check of the keys of a table, of their types and by the class of the table."""

    def check_value(value: Any) -> str:
        problem = _TABLE(value)
        if problem:
            return problem
        for name, entry in value.items():
            if name not in checks:
                return f"there is no {name!r} in it{suggest_name(name, checks)}"
            problem = checks[name](entry)
            if problem:
                return f"{name}: {problem}"
        return _check_policy(key, value)

    return check_value


def _check_policy(key: str, value: Any) -> str:
    try:
        changes: dict[str, Any] = {key: _policy_value(key, value)}
        # The policy classes know their own limits; the checks above only give better messages about types.
        evolve(DEFAULT_POLICY, **changes)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _check_deduplicate(value: Any) -> str:
    if isinstance(value, str):
        return "" if value == "exact" else f"it has to be a table or 'exact', not {value!r}"
    return _check_table("deduplicate", _POLICY_TABLES["deduplicate"][1])(value)


_POLICY: Mapping[str, Check] = {
    "timeout": _check_single("timeout", _NUMBER),
    "deadline": _check_single("deadline", _NUMBER),
    "sequential": _check_single("sequential", _FLAG),
    "key": _check_single("key", _TEXT),
    "max_result_bytes": _check_single("max_result_bytes", _COUNT),
    **{key: _check_table(key, checks) for key, (_, checks) in _POLICY_TABLES.items()},
    "deduplicate": _check_deduplicate,
}
"""The keys that are values of `ToolPolicy`, with their checks."""

# --- keys -------------------------------------------------------------------------------------------------------

_COMMON: Mapping[str, Check] = {
    "source": _TEXT,
    "use": _TEXT,
    "enabled": _FLAG,
    "description": _TEXT,
    "defaults": _is_json,
    DEDUPLICATOR: _TEXT,
    **_POLICY,
}
_ENSEMBLE: Mapping[str, Check] = {**_COMMON, "options": _is_json, "tools": _TABLE}
KEYS: Mapping[TableKind, Mapping[str, Check]] = {
    TableKind.ENSEMBLE: _ENSEMBLE,
    TableKind.FILE: {**_ENSEMBLE, "name": _TEXT},
    TableKind.TOOL: {**_COMMON, "schema": _is_json, "effect": _is_effect},
}
"""The keys of each kind of table, with their checks."""
