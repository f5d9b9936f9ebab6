"""The audit of a loop: for each tool with consequences, how its calls are guarded, limited, recorded and repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any, Literal, TypeAlias

from attrs import asdict, evolve, field, frozen

from agentloop.contracts.can_intercept import (
    CanForetellQuestions,
    CanIntercept,
    CanLimitTime,
    CanStopAtOnce,
    uses_labels,
)
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_tell_controls import CanTellControls, Control, ControlKind
from agentloop.contracts.tool import (
    DEFAULT_POLICY,
    CanAccessToolContext,
    CanCallTools,
    CanLabelResult,
    Tool,
    ToolContext,
)
from agentloop.contracts.tools import Tools
from agentloop.executors.forwarding import innermost_executor
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.loop.parts import LoopParts, unwrapped
from agentloop.loop.tool_names import find_name_problems
from agentloop.loop.tool_policies import declared_policies
from agentloop.loop.unasked import ReachedTool, reached_tools
from agentloop.tools.function_tool import FunctionTool
from agentloop.values.authority import Authority
from agentloop.values.points import POINTS
from agentloop.values.records import InDoubt
from agentloop.values.reprs import format_count
from agentloop.values.tool_calls import Effect, ToolSpec
from agentloop.values.value import Value
from agentloop.values.visible_text import escape_invisible

HoleKind: TypeAlias = Literal[
    "unasked",
    "partly",
    "leaks",
    "uncounted",
    "endless",
    "unrecorded",
    "repeated",
    "reused",
    "trusted",
    "unknown",
    "unmatched",
    "idle",
]
"""The kinds of holes; `HOLES` describes them."""

HOLES: Mapping[HoleKind, str] = {
    "unasked": "no person is asked about its calls, and no rule refuses them",
    "partly": "some of its calls run although no person is asked and no rule refuses them; that depends on the call",
    "leaks": "data can leave by its calls, no person is asked about them, and no rule refuses them",
    "uncounted": "nothing limits the number of its calls",
    "endless": "nothing limits the time of its calls",
    "unrecorded": "no journal records a call before it runs, so that a crash leaves it unknown whether it ran",
    "repeated": "a failed call runs again, and the tool does not take the key by which a service could refuse the second one",
    "reused": "an interceptor answers calls with the results of others, so that they do not run; the tool does not declare it",
    "trusted": "it needs no question only because the annotations of its server say so",
    "unknown": "the interceptor takes part in calls, and does not tell how",
    "unmatched": "the name or pattern matches no tool",
    "idle": "the interceptor is about none of the tools",
}
"""The kinds of holes, each with its meaning."""


@frozen(eq=False, repr=False)
class AuditHole(Value):
    """Something that nobody guards, limits or records.

    Attributes:
        kind: the kind.
        subject: the tool, after the names of the agents that lead to it; the interceptor of `unknown` and `idle`; a message of
            `unmatched`.
        what: its meaning in words for people.
    """

    kind: HoleKind
    subject: str
    what: str


@frozen(eq=False, repr=False)
class AuditedTool(Value):
    """A tool that is not pure, or by which data can leave, with what is known about its calls.

    Attributes:
        name: its name, after the names of the agents that lead to it: `research/send_mail`. The tools of a group that are not known
            yet are `group/*`.
        effect: its effect; `of the provider` for a tool of the provider.
        egress: whether data can leave by its calls.
        word: the speaker of the statement about its effect that holds, with the place.
        controls: how its calls are controlled; those of interceptors in their order, outermost first.
        unknown: the names of interceptors that take part in its calls and do not tell how.
        holes: what is missing.
    """

    name: str
    effect: str
    egress: bool
    word: str
    controls: tuple[Control, ...] = ()
    unknown: tuple[str, ...] = ()
    holes: tuple[AuditHole, ...] = field(default=(), converter=tuple[AuditHole, ...])

    def controls_of(self, *kinds: ControlKind) -> tuple[Control, ...]:
        """Return the controls of some kinds."""
        return tuple([control for control in self.controls if control.kind in kinds])


@frozen(eq=False, repr=False)
class Audit(Value):
    """The audit of a loop; its text is a table.

    Attributes:
        tools: the tools that are not pure, or by which data can leave, with those of sub-agents and handoffs.
        harmless: how many tools are pure and send no data.
        others: the holes that are about an interceptor or a name, and not about one tool.
        undeclared: the tools that do not declare whose words are in their results, as by `@tool(own=…)`; empty for a loop whose
            interceptors do not ask about it.
    """

    tools: tuple[AuditedTool, ...]
    harmless: int = 0
    others: tuple[AuditHole, ...] = field(default=())
    undeclared: tuple[str, ...] = ()

    @property
    def holes(self) -> tuple[AuditHole, ...]:
        """All holes, those of tools first."""
        return (*[hole for tool in self.tools for hole in tool.holes], *self.others)

    def as_json(self) -> dict[str, Any]:
        """Return the audit as plain JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(format_audit(self))


def audit_loop(loop: LoopParts, journal: CanJournal | None, in_doubt: InDoubt) -> Audit:
    """Audit a loop with its sub-agents, and with the loops that it hands over to; nothing is called or started.

    Args:
        loop: the loop.
        journal: its journal.
        in_doubt: what it does about an interrupted call with an effect.
    """
    reached = list(reached_tools(loop))
    surroundings = _Surroundings(journal, in_doubt)
    # A tool of a provider has no definition here: it has consequences.
    audited = [surroundings.audit(each) for each in reached if not each.specs or _is_notable(each)]
    unmatched = [AuditHole("unmatched", problem, HOLES["unmatched"]) for problem in find_name_problems(loop)]
    unknown = [AuditHole("unknown", name, HOLES["unknown"]) for name in _unknown_guards(reached)]
    idle = [AuditHole("idle", name, HOLES["idle"]) for name in _idle(reached)]
    undeclared = tuple([each.name for each in reached if _is_undeclared(each)])
    return Audit(tuple(audited), len(reached) - len(audited), (*unknown, *unmatched, *idle), undeclared)


def audit_definitions(tools: Iterable[Tool]) -> Audit:
    """Audit what tools declare themselves, without the guards and the journal of a loop, which are not known.

    Args:
        tools: the tools; several may have one name.
    """
    audited, harmless = list[AuditedTool](), 0
    for tool in tools:
        alone = Tools.of([tool])
        reached = ReachedTool(tool.name, (tool.spec,), tool, None, "", tuple(declared_policies(alone, ())), None)
        if not _is_notable(reached):
            harmless += 1
            continue
        row = _Surroundings(None, InDoubt.TELL).audit(reached)
        audited.append(evolve(row, holes=[hole for hole in row.holes if hole.kind in _OF_DEFINITIONS]))
    return Audit(tuple(audited), harmless)


_OF_DEFINITIONS: frozenset[HoleKind] = frozenset({"uncounted", "endless", "repeated", "trusted"})
"""The holes that lie in the definition of a tool; the others are a matter of the loop."""


# --- the controls of one tool ----------------------------------------------------------------------------------------

_POINTS_OF_CALLS = frozenset(name for name in POINTS if name.endswith("_tool_use"))
_GUARDING_POINTS = _POINTS_OF_CALLS - {"after_tool_use"}


def _is_notable(reached: ReachedTool) -> bool:
    return any(spec.effect is not Effect.PURE or spec.egress for spec in reached.specs) or _is_trusted(reached)


def _is_undeclared(reached: ReachedTool) -> bool:
    """Return whether all results of a tool count as the words of others, since nobody has said whose words are in them."""
    # The agents that serve calls get the interceptors that use labels from their callers.
    is_labeled = uses_labels([layer for each in (reached, *reached.agents) for layer in each.layers])
    says_itself = isinstance(reached.tool, CanLabelResult | CanCallTools)
    return is_labeled and not says_itself and not any(spec.own for spec in reached.specs)


def _is_trusted(reached: ReachedTool) -> bool:
    """Return whether a tool may have another effect than `effect` on the word of its server."""
    if reached.tool is None:
        # An MCP server has not said yet which effects its tools have.
        return bool(getattr(reached.group, "trust_annotations", False))
    said = reached.tool.declarations
    by_server = [each.value for each in said.about("annotations") if each.by is Authority.SERVER]
    return bool(by_server and said.about("trust_annotations")) and reached.tool.effect is not Effect.EFFECT


def _controls_of(layer: CanIntercept, reached: ReachedTool) -> list[Control]:
    """Return how an interceptor controls the calls of a tool, by the strictest definition that the tool may have."""
    spec, found = _strictest(reached), list[Control]()
    if spec is None:
        return []
    policy = DEFAULT_POLICY if reached.tool is None else reached.tool.policy
    if isinstance(layer, CanTellControls):
        found += layer.controls_on(spec, reached.ensemble, policy)
    elif isinstance(layer, CanForetellQuestions):
        asks = layer.asks_about(spec, reached.ensemble)
        found += [] if asks is False else [Control("asks", "a person decides", is_sure=asks is True)]
    if not isinstance(layer, CanTellControls) and isinstance(layer, CanLimitTime):
        found.append(Control("limits", "the time of the execution", of="time"))
    if isinstance(layer, CanStopAtOnce):
        found.append(Control("stops", "at any moment", of="executions", is_sure=False, reaches_agents=True))
    return [control if control.by else evolve(control, by=layer.name) for control in found]


def _strictest(reached: ReachedTool) -> ToolSpec | None:
    order = list(Effect)
    return max(reached.specs, key=lambda spec: order.index(spec.effect), default=None)


def _is_unknown(layer: CanIntercept, points: frozenset[str]) -> bool:
    tells = isinstance(layer, CanTellControls | CanForetellQuestions | CanStopAtOnce | CanLimitTime)
    return not tells and bool(layer.points & points)


def _own_controls(tool: Tool) -> Iterator[Control]:
    """Yield the controls that a tool declares and that need no interceptor."""
    policy, by = tool.policy, "the tool"
    if policy.timeout is not None:
        yield Control("limits", f"{policy.timeout:g} seconds for an attempt", of="time", by=by)
    if policy.may_repeat and tool.effect is not Effect.PURE:
        yield Control("repeats", "an equal call of the model runs again", of="calls", by=by)


def _takes_key(tool: Tool | None) -> bool:
    """Return whether a tool can pass the key of a call on, by which a service refuses the same call a second time."""
    if tool is None:
        return False
    inner = unwrapped(tool)
    if isinstance(inner, FunctionTool):
        return any(issubclass(kind, ToolContext) for kind in inner.signature.injected.values())
    # A tool that another program defines gets its arguments alone.
    return not inner.spec.definition and isinstance(inner, CanAccessToolContext)


@frozen
class _Surroundings:
    """The parts of a loop that control all of its calls.

    Attributes:
        journal: its journal.
        in_doubt: what it does about an interrupted call with an effect.
    """

    journal: CanJournal | None
    in_doubt: InDoubt

    def audit(self, reached: ReachedTool) -> AuditedTool:
        # After a handoff, the interceptors of both loops may say the same, such as of a limit of steps.
        controls = tuple(dict.fromkeys(self._controls(reached)))
        points = () if not reached.specs else reached.layers
        unknown = tuple([layer.name for layer in points if _is_unknown(layer, _POINTS_OF_CALLS)])
        spec = _strictest(reached)
        effect = "of the provider" if spec is None else " or ".join(each.effect for each in reached.specs)
        row = AuditedTool(reached.name, effect, spec is None or bool(spec.egress), reached.word, controls, unknown)
        found = [AuditHole(kind, reached.name, HOLES[kind]) for kind in _holes(reached, row)]
        return evolve(row, holes=tuple(found))

    def _controls(self, reached: ReachedTool) -> Iterator[Control]:
        if not reached.specs:
            return
        for layer in reached.layers:
            yield from _controls_of(layer, reached)
        yield from _inherited(reached)
        yield from _beside_layers(reached)
        # An agent records in the journal of its caller, if that has one.
        journal = self.journal or (getattr(reached.loop, "journal", None) if reached.agents else None)
        if journal is not None:
            what = f"intents and outcomes; a call in doubt: {self.in_doubt}"
            yield Control("records", what, of="intents", by=type(journal).__name__)


def _beside_layers(reached: ReachedTool) -> Iterator[Control]:
    """Yield the controls of the tool itself, and of the executor of its loop."""
    if reached.tool is not None:
        yield from _own_controls(reached.tool)
    if reached.loop is not None:
        yield from _of_executor(reached.loop)


def _of_executor(loop: LoopParts) -> Iterator[Control]:
    executor = innermost_executor(loop.executor)
    seconds = executor.default_timeout if isinstance(executor, ToolExecutor) else None
    if seconds is not None:
        yield Control("limits", f"{seconds:g} seconds for an attempt", of="time", by=type(executor).__name__)


def _inherited(reached: ReachedTool) -> Iterator[Control]:
    """Yield the controls on the calls of agents that hold for the calls of the agents, too: a timeout cancels all of an agent."""
    for agent in reached.agents:
        controls = [control for layer in agent.layers for control in _controls_of(layer, agent)]
        for control in (*controls, *_beside_layers(agent)):
            if control.reaches_agents or control.of == "time":
                yield evolve(control, by=f"{control.by} of the caller")


# --- holes -----------------------------------------------------------------------------------------------------------


def _holes(reached: ReachedTool, row: AuditedTool) -> Iterator[HoleKind]:
    spec = _strictest(reached)
    effect = Effect.EFFECT if spec is None else spec.effect
    guards = [
        control for control in row.controls_of("asks", "stops") if control.kind == "asks" or control.of == "calls"
    ]
    if effect is not Effect.PURE and not any(guard.is_sure for guard in guards):
        yield "partly" if guards else "unasked"
    if row.egress and not guards:
        yield "leaks"
    if _is_trusted(reached):
        yield "trusted"
    if spec is not None and effect is not Effect.PURE:
        yield from _unlimited(row)
    if spec is not None and effect is Effect.EFFECT:
        yield from _unrepeatable(reached, row)


def _unlimited(row: AuditedTool) -> Iterator[HoleKind]:
    limited = {control.of for control in row.controls_of("limits")}
    if not limited & {"calls", "rate"}:
        yield "uncounted"
    if "time" not in limited:
        yield "endless"


def _unrepeatable(reached: ReachedTool, row: AuditedTool) -> Iterator[HoleKind]:
    if not any(control.of == "intents" for control in row.controls_of("records")):
        yield "unrecorded"
    if any(control.of == "attempts" for control in row.controls_of("repeats")) and not _takes_key(reached.tool):
        yield "repeated"
    if any(control.of == "undeclared" for control in row.controls_of("reuses")):
        yield "reused"


def _unknown_guards(reached: Iterable[ReachedTool]) -> Iterable[str]:
    layers = [layer for each in reached if each.specs for layer in each.layers]
    return dict.fromkeys(layer.name for layer in layers if _is_unknown(layer, _GUARDING_POINTS))


def _idle(reached: Sequence[ReachedTool]) -> Iterable[str]:
    """Return the names of the interceptors that would tell about calls, and are about no tool of all the loops that they are in."""
    # A server that has listed nothing yet may have tools that they are about.
    if any(each.group is not None and each.tool is None for each in reached):
        return []
    layers = {id(layer): layer for each in reached for layer in each.layers}
    acting = {id(layer) for each in reached for layer in each.layers if _controls_of(layer, each)}
    return [
        layer.name
        for key, layer in layers.items()
        if isinstance(layer, CanTellControls | CanForetellQuestions) and key not in acting
    ]


# --- the table -------------------------------------------------------------------------------------------------------

_COLUMNS: Mapping[str, int] = {
    "tool": 26,
    "effect": 10,
    "asks or stops": 24,
    "limits": 30,
    "records": 20,
    "repeats or reuses": 20,
}


def format_audit(audit: Audit) -> list[str]:
    """Return the lines of an audit: a table of the tools, the rest of the tools in a line, and the holes."""
    rows = [[*map(_join, _cells(tool))] for tool in audit.tools]
    lines = [line for row in ([[*_COLUMNS], *rows] if rows else []) for line in _format_row(row)]
    if audit.harmless:
        lines.append(f"pure, and sending no data: {format_count(audit.harmless, 'more tool')}")
    by_kind: dict[tuple[HoleKind, str], list[str]] = {}
    for hole in audit.holes:
        by_kind.setdefault((hole.kind, hole.what), []).append(escape_invisible(hole.subject))
    if audit.undeclared:
        names = ", ".join(map(escape_invisible, audit.undeclared))
        lines += wrap(
            f"undeclared, so that their results count as the words of others: {names}", 118, subsequent_indent="  "
        )
    lines += ["holes:" if by_kind else "no holes"]
    for (kind, what), subjects in by_kind.items():
        separator = "; " if kind == "unmatched" else ", "
        lines += wrap(f"{kind}: {separator.join(subjects)}: {what}", 118, initial_indent="  ", subsequent_indent="    ")
    return lines


def _cells(tool: AuditedTool) -> Iterator[list[str]]:
    yield [tool.name]
    yield [tool.effect, *(["data can leave"] if tool.egress else []), *_word(tool)]
    asked = [_name(control) for control in tool.controls_of("asks", "stops")]
    yield [*asked, *[f"unknown: {name}" for name in tool.unknown]]
    yield [f"{control.what} ({control.by})" for control in tool.controls_of("limits")]
    yield [f"{control.by} ({control.what})" for control in tool.controls_of("records")]
    yield [f"{control.what} ({control.by})" for control in tool.controls_of("repeats", "reuses")]


def _word(tool: AuditedTool) -> list[str]:
    return [] if tool.word == Authority.CODE else [f"word of {tool.word}"]


def _name(control: Control) -> str:
    verb = "stops" if control.kind == "stops" else "asks"
    return f"{control.by} {verb}{'' if control.is_sure else ' some'}"


def _join(entries: Iterable[str]) -> str:
    return "\n".join(map(escape_invisible, entries)) or "-"


def _format_row(cells: Sequence[str]) -> Iterator[str]:
    widths = list(_COLUMNS.values())
    wrapped = [
        [line for entry in cell.split("\n") for line in wrap(entry, width)]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for line in zip_longest(*wrapped, fillvalue=""):
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
