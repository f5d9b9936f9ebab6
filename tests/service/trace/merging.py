"""What the viewer does with patches, in Python."""

from __future__ import annotations

from typing import Any

IDENTITIES = {
    "steps": "number",
    "inferences": "index",
    "calls": "key",
    "messages": "index",
    "conversation": "sequence",
} | {
    "settings": "index",
    "renderings": "index",
}
GROUPED = ("marks", "changes")


def merge(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return a trace after a patch: entries with the identity of an older one replace it, and others are added."""
    executions = {each["id"]: each for each in document["executions"]}
    for each in patch["executions"]:
        executions[each["id"]] = _merge_execution(executions.get(each["id"], {}), each)
    root, *below = sorted(executions.values(), key=lambda each: (each["id"] != patch["id"], each["id"]))
    return {**patch, "is_patch": document["is_patch"], "executions": [root, *below]}


def _merge_execution(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    merged = dict(new)
    for name, identity in IDENTITIES.items():
        entries = {entry[identity]: entry for entry in [*old.get(name, []), *new[name]]}
        merged[name] = list(entries.values())
    for name in GROUPED:
        changed = {entry["sequence"] for entry in new[name]}
        merged[name] = [entry for entry in old.get(name, []) if entry["sequence"] not in changed] + new[name]
    return merged
