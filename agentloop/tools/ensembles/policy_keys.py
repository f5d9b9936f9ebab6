"""The keys for values of `ToolPolicy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from agentloop.contracts.tool_policy import DEFAULT_POLICY, ToolPolicy
from agentloop.tools.ensembles.toml_types import Check, is_list_of_texts, is_of
from agentloop.tools.ensembles.tool_override import closest
from agentloop.values.call_policy import CachePolicy, CircuitPolicy, DeduplicatePolicy, RateLimit, RetryPolicy

DEDUPLICATOR = "deduplicator"
"""The key for the name of a deduplicator that the program gives."""
_NUMBER, _COUNT, _TEXT = is_of(float, int), is_of(int), is_of(str)
_TABLES: Mapping[str, tuple[type, Mapping[str, Check]]] = {
    "retry": (
        RetryPolicy,
        {
            "attempts": _COUNT,
            "first_wait": _NUMBER,
            "longest_wait": _NUMBER,
            "on": is_list_of_texts,
            "not_on": is_list_of_texts,
        },
    ),
    "cache": (CachePolicy, {"seconds": _NUMBER, "most": _COUNT}),
    "rate_limit": (
        RateLimit,
        {"calls": _COUNT, "per": _NUMBER, "burst": _COUNT, "longest_wait": _NUMBER, "by": _TEXT},
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
