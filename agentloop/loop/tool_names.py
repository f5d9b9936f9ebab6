"""The names of tools in the parts of a loop: each has to match a tool, since a guard for a tool that is not there guards nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from attrs import define, field, frozen

from agentloop.contracts.can_accept import CanAddTools
from agentloop.contracts.can_compile_messages import CompilerPipeline
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.execution_scope import Resources
from agentloop.contracts.tool import CanDiscoverTools
from agentloop.contracts.tools import Tools
from agentloop.drivers.forwarding import innermost_driver
from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.loop.parts import LoopParts, unwrapped
from agentloop.values.tool_calls import Effect

_MAX_LOOPS = 64
"""So many loops of handoffs and sub-agents are looked at: a function may return a new one each time that it is called."""


def check_tool_names(loop: LoopParts) -> frozenset[object]:
    """Check the names of tools in the parts of a loop, of its sub-agents and of the loops that it hands over to.

    What a group may discover is checked when it has.

    Returns:
        The references that have been checked, each with the identity of its part.

    Raises:
        ConfigurationError: a name or a pattern matches no tool; names the closest one.
    """
    checked = set[object]()
    for part, reference, problem in _problems_in(_Family.of(loop)):
        if problem:
            raise ConfigurationError(problem)
        if problem is not None:
            checked.add((id(part), reference))
    return frozenset(checked)


def find_name_problems(loop: LoopParts) -> list[str]:
    """Return why names of tools in the parts of a loop match no tool, as `check_tool_names` raises it for the first one."""
    return list(dict.fromkeys(problem for _, _, problem in _problems_in(_Family.of(loop)) if problem))


def check_discovered_names(root: LoopParts, loop: LoopParts, tools: Tools, noted: set[object]) -> None:
    """Check the names of tools in the parts of a loop whose groups have discovered their tools.

    Args:
        root: the executed loop, whose interceptors stay after a handoff.
        loop: the loop that the conversation is with.
        tools: its tools, with those that were discovered.
        noted: the references that match a tool of the executed loop, or of one that calls it; those that match here are added.

    Raises:
        ConfigurationError: a name or a pattern matches no tool, or a group is configured with one that its tools do not have.
    """
    for group in tools.groups:
        if isinstance(group, CanDiscoverTools) and group.name_problems:
            raise ConfigurationError(f"{group.name}: {'; '.join(group.name_problems)}")
    family = _Family([root] if root is loop else [root, loop], {id(loop): tools})
    for part, reference, problem in _problems_in(family):
        if problem == "":
            noted.add((id(part), reference))
        elif problem and (id(part), reference) not in noted:
            raise ConfigurationError(problem)


def _problems_in(family: _Family) -> Iterator[tuple[CanNameTools, ToolReference, str | None]]:
    for owner in family.loops:
        for part in _parts_of(owner):
            for reference in part.tool_references:
                yield part, reference, family.problem_of(owner, part, reference)


def noted_references(resources: Resources) -> set[object]:
    """Return the references that matched in an execution or in one of its callers; a sub-agent shares the resources of its caller."""
    return resources.open((ToolReference, "matched"), set, _forget)


# --- the tools of loops ---------------------------------------------------------------------------------------------


@frozen
class _NamedTool:
    """A tool by what a reference says about it.

    Attributes:
        name: its name.
        ensemble: the name of its group; empty if it has none.
        effect: its effect.
    """

    name: str
    ensemble: str
    effect: Effect


@define
class _Known:
    """The tools of one or several loops.

    Attributes:
        tools: the tools.
        withheld: the names of tools that their groups do not offer now.
        ensembles: the names of all groups.
        is_open: whether a group may have further tools.
    """

    tools: list[_NamedTool] = field(factory=list)
    withheld: set[str] = field(factory=set)
    ensembles: set[str] = field(factory=set)
    is_open: bool = False

    def add(self, tools: Tools, *, is_discovered: bool = False) -> None:
        """Add the tools of a loop."""
        names = tools.group_names
        self.tools += [_NamedTool(tool.name, names.get(tool.name, ""), tool.effect) for tool in tools]
        for group in tools.groups:
            self.withheld.update(group.withheld)
            self.ensembles.add(group.name)
            is_undiscovered = isinstance(group, CanDiscoverTools) and not is_discovered
            # A group without any tool is disabled, could not be loaded, or is a server that could not be reached.
            is_empty = group.name not in names.values() and not group.withheld
            self.is_open = self.is_open or is_undiscovered or is_empty

    def problem_of(self, reference: ToolReference) -> str:
        """Return why a reference matches none of the tools; empty if it does."""
        if any(reference.matches(tool.name, tool.ensemble, tool.effect) for tool in self.tools):
            return ""
        named = [tool for tool in self.tools if fnmatchcase(tool.name, reference.tool)]
        if not named and any(fnmatchcase(name, reference.tool) for name in self.withheld):
            return ""
        if not named:
            names = dict.fromkeys([*[tool.name for tool in self.tools], *sorted(self.withheld)])
            return f"there is no tool {reference.tool!r} for {reference.place}{suggest(reference.tool, names)}"
        if not any(fnmatchcase(name, reference.ensemble) for name in (*self.ensembles, "")):
            hint = suggest(reference.ensemble, sorted(self.ensembles))
            return f"there is no ensemble {reference.ensemble!r} for {reference.place}{hint}"
        within = f" in the ensemble {reference.ensemble!r}" if reference.ensemble != "*" else ""
        effect = f" with the effect {reference.effect.value}" if reference.effect is not None else ""
        return f"there is no tool {reference.tool!r}{within}{effect} for {reference.place}"


@define
class _Family:
    """A loop, the loops that it hands over to, and those of its sub-agents.

    Attributes:
        loops: the loops, of which the first is the executed one.
        discovered: the tools of loops whose groups have discovered them, by the identity of the loop.
    """

    loops: Sequence[LoopParts]
    discovered: dict[int, Tools] = field(factory=dict)
    _own: dict[int, _Known] = field(factory=dict, init=False)

    @classmethod
    def of(cls, root: LoopParts) -> _Family:
        """Return a loop with those that can be found without calling a function of the program."""
        found = [root]
        for loop in found:
            below = [
                *_sub_agents_of(loop.tools),
                *[tool.loop for tool in _handoffs_in(loop.tools) if not callable(tool.target)],
            ]
            found += [inner for inner in below if all(inner is not known for known in found)]
            if len(found) > _MAX_LOOPS:
                break
        return cls(found)

    def problem_of(self, owner: LoopParts, part: CanNameTools, reference: ToolReference) -> str | None:
        """Return why a reference of a part matches no tool that the part is for; empty if it does, None if that is not known yet."""
        # The usual case, for which no function of a handoff is called.
        if not reference.is_named:
            return ""
        own = self._own_tools(owner)
        if not own.problem_of(reference):
            return ""
        guarded = own if own.is_open else self._tools_of(self._guarded_by(owner, part))
        problem = guarded.problem_of(reference)
        if problem and guarded.is_open:
            return None
        remedy = f"; {reference.remedy}" if reference.remedy else ""
        return problem and f"{problem}{self._elsewhere(reference)}{remedy}"

    def _own_tools(self, loop: LoopParts) -> _Known:
        """Return the tools of one loop, which each of its parts may name."""
        return self._own.get(id(loop)) or self._own.setdefault(id(loop), self._tools_of([loop]))

    def _tools_of(self, loops: Iterable[LoopParts]) -> _Known:
        known = _Known()
        for loop in loops:
            discovered = self.discovered.get(id(loop))
            known.add(_all_tools(loop, discovered or loop.tools), is_discovered=discovered is not None)
        return known

    def _guarded_by(self, owner: LoopParts, part: CanNameTools) -> Iterator[LoopParts]:
        """Yield the loops in which a part acts: its own, those after handoffs, and others that have the same object."""
        sharing = [loop for loop in self.loops if id(part) in map(id, loop.stack.layers)]
        for start in (owner, *[loop for loop in sharing if loop is not owner]):
            yield start
            yield from _after_handoffs(start)

    def _elsewhere(self, reference: ToolReference) -> str:
        """Return that a sub-agent has such a tool, for which the part of its caller does not act."""
        for loop in self.loops[1:]:
            known = _Known()
            known.add(loop.tools)
            if not known.problem_of(reference):
                return "; a sub-agent has one, and its calls pass the interceptors of its own loop"
        return ""


def _after_handoffs(loop: LoopParts) -> Iterator[LoopParts]:
    seen = [loop]
    for current in seen:
        for handoff in _handoffs_in(current.tools):
            target = handoff.loop
            if len(seen) <= _MAX_LOOPS and all(target is not known for known in seen):
                seen.append(target)
                yield target


# The classes of both kinds of tools import the execution of loops, and so this module.


def _handoffs_in(tools: Tools) -> Iterator[Any]:
    for tool in tools:
        inner = unwrapped(tool)
        if hasattr(inner, "target") and hasattr(type(inner), "loop"):
            yield inner


def _sub_agents_of(tools: Tools) -> Iterator[LoopParts]:
    for tool in tools:
        inner = unwrapped(tool)
        loop = None if hasattr(inner, "target") else getattr(inner, "loop", None)
        if isinstance(loop, LoopParts):
            yield loop


def _all_tools(loop: LoopParts, tools: Tools) -> Tools:
    """Return tools with those that the driver adds, such as the one that runs programs."""
    return loop.driver.add_tools(tools) if isinstance(loop.driver, CanAddTools) else tools


# --- the parts of a loop --------------------------------------------------------------------------------------------


def _parts_of(loop: LoopParts) -> Iterator[CanNameTools]:
    driver = innermost_driver(loop.driver)
    compiler = loop.compiler or getattr(driver, "compiler", None)
    for part in (*loop.stack.layers, driver, *_compilers_in(compiler)):
        if isinstance(part, CanNameTools):
            yield part


def _compilers_in(compiler: object) -> Iterator[object]:
    while compiler is not None:
        if isinstance(compiler, CompilerPipeline):
            for stage in compiler.stages:
                yield from _compilers_in(stage)
            return
        yield compiler
        compiler = getattr(compiler, "inner", None)


def _forget(_: set[object]) -> None:
    """Do nothing: the set is forgotten with its resources."""
