"""The tools of a loop that run without a question, and the speakers on whose word they do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from textwrap import wrap

from attrs import frozen

from agentloop.contracts.can_accept import CanAddTools
from agentloop.contracts.can_intercept import CanForetellQuestions, CanIntercept
from agentloop.contracts.tool import CanDiscoverTools, Tool, ToolGroup
from agentloop.contracts.tools import Tools
from agentloop.drivers.forwarding import innermost_driver
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.errors import ConfigurationError
from agentloop.loop.handoff import HandoffTool
from agentloop.loop.parts import LoopParts, unwrapped
from agentloop.loop.tool_policies import layers_after_handoff
from agentloop.values.authority import Authority
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.tool_calls import ToolSpec
from agentloop.values.visible_text import escape_invisible

_WIDTH = 72
_MAX_DEPTH, _MAX_LOOPS = 8, 1_000  # of loops whose functions create new ones each time


@frozen
class UnaskedTool:
    """A tool with calls that run without a question.

    Attributes:
        name: its name, after the names of the agents that lead to it: `research/read_file`. The tools of a group that are not known
            yet are `group/*`.
        effect: its effect, or the effects that it may have.
        egress: whether data can leave by its calls.
        is_sure: whether each of its calls runs unasked; False if that depends on the call.
        word: the speaker of the statement about its effect that holds, with the place.
    """

    name: str
    effect: str
    egress: bool
    is_sure: bool
    word: str


@frozen
class ReachedTool:
    """A tool that an execution of a loop can reach: one of the loop, of its sub-agents, or of the loops that it hands over to.

    Attributes:
        name: its name, after the names of the agents that lead to it.
        specs: its definition; of a group that has discovered nothing yet, one for each effect that its tools may have; none for a
            tool of the provider.
        tool: the tool; None if the loop has no object of it.
        group: the group that discovers it; None for the others.
        ensemble: the name of its group; empty without one.
        layers: the interceptors that its calls pass.
        loop: its loop; None for a definition alone.
        agents: the tools of agents that lead to it, whose calls its calls are a part of, outermost first.
    """

    name: str
    specs: tuple[ToolSpec, ...]
    tool: Tool | None
    group: CanDiscoverTools | None
    ensemble: str
    layers: tuple[CanIntercept, ...]
    loop: LoopParts | None
    agents: tuple[ReachedTool, ...] = ()

    @property
    def word(self) -> str:
        """The speaker of the statement about its effect that holds, with the place."""
        if self.tool is not None:
            said = self.tool.declarations
            return said.holding("effect").speaker if said.about("effect") else str(Authority.CODE)
        return str(Authority.CODE) if self.group is None else _word_about(self.group)


def reached_tools(loop: LoopParts) -> Iterator[ReachedTool]:
    """Yield the tools that an execution of a loop can reach. Those that a server has not listed yet are `group/*`."""
    return _reached(loop, loop, "", (), [])


def unasked_tools(loop: LoopParts) -> list[UnaskedTool]:
    """Return the tools that run without a question in a loop, its sub-agents, and the loops that it hands over to.

    An interceptor that does not tell beforehand about which calls it asks counts as one that does not ask. The tools that a server
    has not listed yet appear with the effects that they may have.
    """
    return [unasked for reached in reached_tools(loop) for unasked in _unasked(reached)]


def loops_within(loop: LoopParts) -> list[LoopParts]:
    """Return a loop with the loops of its sub-agents, and the loops that it hands over to."""
    found = [loop]
    for each in found:  # grows meanwhile
        inner = [_loop_of(tool) for tool in each.tools]
        found += [other for other in inner if other is not None and not any(other is known for known in found)]
        if len(found) > _MAX_LOOPS:
            break
    return found


def _reached(
    loop: LoopParts,
    executed: LoopParts,
    path: str,
    agents: tuple[ReachedTool, ...],
    seen: list[tuple[LoopParts, LoopParts]],
) -> Iterator[ReachedTool]:
    """Yield the tools of one loop, and of the loops that it leads to.

    Args:
        loop: the loop.
        executed: the loop of the execution, whose interceptors stay after handoffs, unlike those of loops between the two; the same
            loop without a handoff.
        path: the names of the agents and handoffs that lead to it.
        agents: the tools of the agents among them.
        seen: the loops that were visited, each with the executed one.
    """
    if any(loop is other and executed is root for other, root in seen) or path.count("/") > _MAX_DEPTH:
        return
    seen.append((loop, executed))
    stack, (joining, replaced) = executed.stack, layers_after_handoff(executed, loop)
    if joining or replaced:
        stack = stack.with_layers(joining, without=replaced)
    layers, tools = stack.layers, _all_tools(loop)
    for tool in tools:
        ensemble = tools.group_names.get(tool.name, "")
        reached = ReachedTool(f"{path}{tool.name}", (tool.spec,), tool, None, ensemble, layers, loop, agents)
        yield reached
        inner = _loop_of(tool)
        if inner is not None and isinstance(unwrapped(tool), HandoffTool):
            yield from _reached(inner, executed, f"{reached.name}/", agents, seen)
        elif inner is not None:
            yield from _reached(inner, inner, f"{reached.name}/", (*agents, reached), seen)
    for group in tools.groups:
        if isinstance(group, CanDiscoverTools):
            for name, specs, found in _in_group(group):
                yield ReachedTool(f"{path}{name}", specs, found, group, group.name, layers, loop, agents)
    for hosted in _hosted_kinds(loop):
        yield ReachedTool(f"{path}{hosted}", (), None, None, "", layers, loop, agents)


def _loop_of(tool: Tool) -> LoopParts | None:
    """Return the loop that an agent or a handoff leads to; None for other tools."""
    try:
        inner = getattr(unwrapped(tool), "loop", None)  # the class of agents imports this room's loops
    except ConfigurationError:  # a handoff to something else, which the call reports
        return None
    return inner if isinstance(inner, LoopParts) else None


def _all_tools(loop: LoopParts) -> Tools:
    """Return the tools of a loop with those that its driver adds."""
    driver = innermost_driver(loop.driver)
    with suppress(ConfigurationError):  # of an extra that is missing, which the first execution reports
        if isinstance(driver, CanAddTools):
            return driver.add_tools(loop.tools)
    return loop.tools


def _in_group(group: CanDiscoverTools) -> Iterator[tuple[str, tuple[ToolSpec, ...], Tool | None]]:
    if group.offered:
        yield from [(tool.name, (tool.spec,), tool) for tool in group.offered]
        return
    name = f"{group.name}/*"
    specs = [ToolSpec(name, "", EMPTY_OBJECT, effect, egress=True) for effect in sorted(group.possible_effects)]
    if specs:
        yield name, tuple(specs), None


def _hosted_kinds(loop: LoopParts) -> Iterator[str]:
    driver = innermost_driver(loop.driver)
    options = driver.options if isinstance(driver, InferringDriver) else None
    yield from [hosted.kind for hosted in (() if options is None else options.hosted_tools)]


def _unasked(reached: ReachedTool) -> Iterator[UnaskedTool]:
    if not reached.specs:
        yield UnaskedTool(reached.name, "of the provider", egress=True, is_sure=True, word=reached.word)
        return
    answers = {spec: _ask(reached.layers, spec, reached.ensemble) for spec in reached.specs}
    unasked = [spec for spec, asks in answers.items() if asks is not True]
    if unasked:
        effects = " or ".join(spec.effect for spec in unasked)
        is_sure = all(asks is False for asks in answers.values())
        yield UnaskedTool(reached.name, effects, bool(unasked[0].egress), is_sure, reached.word)


def _word_about(group: ToolGroup) -> str:
    about_effects = [said for said in group.statements if said.about in {"trust_annotations", "effects"}]
    return next((said.speaker for said in about_effects if said.by.may_loosen), str(Authority.CODE))


def _ask(layers: Iterable[CanIntercept], tool: ToolSpec, ensemble: str) -> bool | None:
    answers = {layer.asks_about(tool, ensemble) for layer in layers if isinstance(layer, CanForetellQuestions)}
    return True if True in answers else None if None in answers else False


def format_unasked(tools: Iterable[UnaskedTool], *, max_names: int = 1_000) -> list[str]:
    """Return the lines of a table of tools, without any if there are no tools; tools with equal entries share a row.

    Args:
        tools: the tools.
        max_names: the maximum number of names in a row.
    """
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for tool in tools:
        told = (tool.effect, "yes" if tool.egress else "no", "none" if tool.is_sure else "some calls", tool.word)
        rows.setdefault(told, []).append(tool.name)
    if not rows:
        return []
    cells: list[tuple[Sequence[str], list[str]]] = [(_HEADER[1:], [_HEADER[0]])]
    for told, names in rows.items():
        cells.append(
            ([escape_invisible(cell) for cell in told], wrap(escape_invisible(_join(names, max_names)), _WIDTH))
        )
    widths = [max(len(told[index]) for told, _ in cells) for index in range(len(_HEADER) - 1)]
    first = max(len(line) for _, lines in cells for line in lines)
    return [line for told, lines in cells for line in (_format_row(lines[0], told, first, widths), *lines[1:])]


_HEADER = ("tools that run unasked", "effect", "data can leave", "questions", "word of")


def _join(names: Sequence[str], max_names: int) -> str:
    more = len(names) - max_names
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:max_names])} and {more} more"


def _format_row(name: str, cells: Sequence[str], first: int, widths: Sequence[int]) -> str:
    return "  ".join(
        [name.ljust(first), *[cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]]
    ).rstrip()
