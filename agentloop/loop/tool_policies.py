"""The policies that tools declare: a loop applies them where none of its interceptors does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import CanDiscoverTools
from agentloop.contracts.tools import Tools
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.doors import declarable
from agentloop.values.policies import CallPolicy

_POLICIES = ("deduplicate", "cache", "deadline", "retry", "circuit", "rate_limit")
_KEPT = "the layers for declared policies"


def declared_policies(tools: Tools, interceptors: Iterable[CanIntercept]) -> Sequence[CanIntercept]:
    """Return the interceptors that apply what tools declare and these interceptors do not apply; none for most loops.

    Buckets, circuits and stored results belong to `tools`, so copies of a loop with the same tools share them.

    Args:
        tools: the tools of a loop.
        interceptors: its interceptors. A `Resilience` applies every policy or leaves it out on purpose; a single layer such as
            `Retry` applies one.
    """
    declared = tools.kept.get(_POLICIES)
    if declared is None:
        declared = tools.kept[_POLICIES] = _declared_by(tools)
    return _layers(tools, declared, interceptors) if declared else ()


def layers_added_for(tools: Tools) -> Sequence[CanIntercept]:
    """Return the interceptors that loops with these tools were given for what the tools declare."""
    return tuple(tools.kept.get(_KEPT, {}).values())


def _declared_by(tools: Tools) -> Sequence[str]:
    policies: list[CallPolicy | None] = [tool.policy for tool in tools]
    policies += [group.call_policy for group in tools.groups if isinstance(group, CanDiscoverTools)]
    # What the tools of a group will declare may be unknown before they are discovered.
    return [
        name for name in _POLICIES if any(policy is None or getattr(policy, name) is not None for policy in policies)
    ]


def _layers(tools: Tools, declared: Sequence[str], interceptors: Iterable[CanIntercept]) -> Sequence[CanIntercept]:
    given = [each for one in interceptors for each in (one.layers if isinstance(one, InterceptorStack) else (one,))]
    if declarable().applies_all(given):
        return ()
    applied = declarable().single_layers(given)
    missing = [name for name in declared if name not in applied]
    kept = tools.kept.setdefault(_KEPT, {})
    # Beside single layers, each is a layer of its own, so that all of them keep their order.
    groups = [(name,) for name in missing] if applied else [tuple(missing)]
    added = []
    for names in filter(None, groups):
        if names not in kept:
            kept[names] = declarable().declared_layers(names, tools.kept)
        added.append(kept[names])
    return added
