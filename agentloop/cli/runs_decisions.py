"""Decisions about calls that wait, as a command line gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import click
from attrs import define, field

from agentloop.cli.approvals import Decider
from agentloop.cli.bad_usage import BadUsage
from agentloop.cli.terminal_text import call_text, one_line
from agentloop.errors import MalformedArguments
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision, answer, approve, deny, edit
from agentloop.values.json_text import parse_json
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_executions import key_place

_DENIED = "the user has denied this call"


@define
class GivenDecisions:
    """What a command line decides; each decision is used once.

    Attributes:
        about: for a key, or for a place as `runs show` prints it (`2.1`), what makes the decision for the call.
    """

    about: dict[str, Callable[[PendingCall], Decision]] = field(factory=dict)

    def taken(self, state: AgentState, decide: Decider) -> Mapping[str, Decision]:
        """Return the decisions about the calls that wait; `decide` decides about those that the command line does not name.

        Raises:
            BadUsage: when a decision is about a call that does not wait.
        """
        waiting = [call for call in state.pending if not call.waits_for]
        named = {name: self._meant(name, waiting) for name in self.about}
        decisions = {call.key: self.about[name](call) for name, call in named.items()}
        self.about.clear()
        for call in waiting:
            if call.key in decisions:
                continue
            decision = decide(call)
            if decision is None:
                break
            decisions[call.key] = decision
        return decisions

    def check_used(self) -> None:
        """Refuse decisions that were for nothing, as when the execution has ended.

        Raises:
            BadUsage: when there are some.
        """
        if self.about:
            raise BadUsage(f"no call waits for a decision, so there is none for {', '.join(map(one_line, self.about))}")

    def _meant(self, name: str, waiting: Sequence[PendingCall]) -> PendingCall:
        meant = [call for call in waiting if call.key == name] or [call for call in waiting if _place(call.key) == name]
        if len(meant) == 1:
            return meant[0]
        known = ", ".join([f"{one_line(call.key)} ({call_text(call.call)})" for call in waiting]) or "none"
        problem = "is the place of several" if meant else "waits for no decision"
        raise BadUsage(f"{one_line(name)} {problem}; the calls that wait are {known}")


def decision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--approve`, `--deny`, `--answer` and `--edit` to a command, which gets them as its argument `given`."""

    @wraps(command)
    def with_decisions(
        *arguments: Any,
        approve_keys: Sequence[str],
        denials: Sequence[str],
        answers: Sequence[str],
        edits: Sequence[str],
        **options: Any,
    ) -> None:
        given = GivenDecisions()
        for key in approve_keys:
            _add(given, key, _approval)
        for key, why in map(_split, denials):
            _add(given, key, partial(_denial, why or _DENIED))
        for key, text in map(_split, answers):
            _add(given, key, partial(_answer, _json(text, key)))
        for key, text in map(_split, edits):
            _add(given, key, partial(_edit, _arguments(text, key)))
        command(*arguments, given=given, **options)

    for option in reversed(_OPTIONS):
        option(with_decisions)
    return with_decisions


_OPTIONS = (
    click.option("--approve", "approve_keys", multiple=True, metavar="KEY", help="Let a call that waits run."),
    click.option(
        "--deny", "denials", multiple=True, metavar="KEY[=WHY]", help="Keep it from running, and tell the model why."
    ),
    click.option(
        "--answer", "answers", multiple=True, metavar="KEY=JSON", help="Settle it with a result, without running it."
    ),
    click.option(
        "--edit", "edits", multiple=True, metavar="KEY=JSON", help="Let it run with other arguments, a JSON object."
    ),
)


def _add(given: GivenDecisions, key: str, decision: Callable[[PendingCall], Decision]) -> None:
    if key in given.about:
        raise BadUsage(f"{one_line(key)} is decided twice")
    given.about[key] = decision


def _approval(call: PendingCall) -> Decision:
    return approve(call.digest)


def _denial(why: str, call: PendingCall) -> Decision:
    return deny(why, call.digest)


def _answer(value: object, call: PendingCall) -> Decision:
    return answer(value, call.digest)


def _edit(arguments: Mapping[str, object], call: PendingCall) -> Decision:
    return edit(arguments, call.digest)


def _split(told: str) -> tuple[str, str]:
    key, _, rest = told.partition("=")
    return key, rest


def _json(text: str, key: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise BadUsage(
            f"the answer for {one_line(key)} is not JSON: {error}; a text stands in quotation marks"
        ) from error


def _arguments(text: str, key: str) -> Mapping[str, object]:
    try:
        return ToolCall("", "", text or "?").arguments
    except MalformedArguments as error:
        raise BadUsage(f"the arguments for {one_line(key)} cannot be used: {one_line(str(error))}") from error


def _place(key: str) -> str:
    place = key_place(key)
    return "" if place is None else f"{place[0]}.{place[1] + 1}"
