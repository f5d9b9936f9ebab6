"""The policies that tools declare: a loop applies them where none of its interceptors does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import CanDiscoverTools
from agentloop.contracts.tools import Tools
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.doors import declarable
from agentloop.loop.parts import LoopParts
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


def layers_after_handoff(root: LoopParts, loop: LoopParts) -> tuple[Sequence[CanIntercept], Sequence[CanIntercept]]:
    """Return the interceptors of a loop that join the ones of the executed loop, each once, and those that they replace.

    Args:
        root: the executed loop, whose interceptors stay.
        loop: the loop that the conversation is handed over to.
    """
    if loop is root:
        return (), ()
    # A loop made with `with_…` from the executed one has the same interceptors, which must not act twice.
    replaced = [*layers_added_for(root.tools), *layers_added_for(loop.tools)]
    left_out = set(map(id, replaced))
    outer = [layer for layer in root.stack.layers if id(layer) not in left_out]
    known = {id(layer) for layer in root.stack.layers} | left_out
    added = [layer for layer in loop.stack.layers if id(layer) not in known]
    # The policies that the tools declare are applied once, whichever of the two loops has the interceptor for them.
    return (*added, *declared_policies(loop.tools, [*outer, *added])), replaced


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
