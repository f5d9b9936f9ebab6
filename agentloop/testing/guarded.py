"""The audit of a loop as an assertion of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, get_args

from agentloop.errors import InvalidParameter
from agentloop.errors.hints import suggest
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.audit import HoleKind, format_audit

NOTHING_ACCEPTED: Mapping[HoleKind, str | Iterable[str]] = MappingProxyType({})


def assert_guarded(loop: AgentLoop[Any], *, accept: Mapping[HoleKind, str | Iterable[str]] = NOTHING_ACCEPTED) -> None:
    """Assert that the audit of a loop finds no holes but those that the program accepts.

        assert_guarded(loop, accept={"uncounted": "*", "unasked": ["set_price", "research/*"]})

    Args:
        loop: the loop.
        accept: the accepted holes: by kind, the subjects, or patterns of them.

    Raises:
        AssertionError: there is another hole, or the audit does not find an accepted one; with the table of the audit.
        InvalidParameter: there is no such kind of hole.
    """
    kinds = get_args(HoleKind)
    for kind in accept:
        if kind not in kinds:
            raise InvalidParameter(f"there is no kind of holes {kind!r}{suggest(kind, kinds)}")
    accepted = [
        (kind, pattern)
        for kind, patterns in accept.items()
        for pattern in ([patterns] if isinstance(patterns, str) else patterns)
    ]
    audit = loop.audit()
    used, problems = set[tuple[str, str]](), list[str]()
    for hole in audit.holes:
        matching = {each for each in accepted if each[0] == hole.kind and fnmatchcase(hole.subject, each[1])}
        used |= matching
        if not matching:
            problems.append(f"{hole.kind}: {hole.subject}: {hole.what}")
    problems += [
        f"accepted, and not there: {kind}: {pattern}" for kind, pattern in accepted if (kind, pattern) not in used
    ]
    if problems:
        raise AssertionError("\n".join([*problems, "", *format_audit(audit)]))
