"""Cases: what agents are tried on, from Python values, files, and journals."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, overload

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.fold import state_at
from agentloop.durable.trees import root_of
from agentloop.errors.hints import suggest
from agentloop.errors.kinds import InvalidFile, InvalidParameter
from agentloop.evals.results import CaseNote
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, format_json, freeze, freeze_object, parse_json
from agentloop.values.messages import Message
from agentloop.values.records import ExecutionHead
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.state import AgentState
from agentloop.values.value import Value, check_types

Where: TypeAlias = Callable[[ExecutionHead], bool]
"""Says of the summary of an execution whether it becomes a case."""

TRIALS: Final = "evals/"
"""How the ids of the executions of trials begin."""

_VERSION_CHARACTERS = 12


@frozen(eq=False, repr=False, kw_only=True)
class CaseCall(Value):
    """A call whose outcome a case knows; the world `Recorded` answers an equal call with it.

    Attributes:
        name: the name of the tool.
        arguments: the arguments.
        value: the result as JSON.
        error: the message of the error that the call ended with; empty when it succeeded.
    """

    name: str
    arguments: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    value: JsonValue = field(default=None, converter=freeze)
    error: str = ""

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False, kw_only=True)
class CaseOrigin(Value):
    """The recorded execution that a case was made from. Each trial of the case is a fork of it.

    Attributes:
        execution_id: the execution.
        at_step: the number of the step after which candidates go on; 0 for the beginning.
        last_hash: the hash of the last record of the execution when the case was made.
    """

    execution_id: str
    at_step: int = 0
    last_hash: str = ""

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False, kw_only=True)
class Case(Value):
    """Something that agents are tried on.

    Attributes:
        name: its name, unique among the cases of a suite.
        input: what the user says: a text or a message. Empty where the case is made from a recorded execution.
        dependencies: JSON from which a candidate makes the dependencies of its tools; None for nothing.
        tags: words by which cases are selected and reported.
        expected: what scorers expect, by name, such as `answer`, `calls` or `fields`; each scorer names the one that it reads.
        calls: calls whose outcomes are known.
        origin: the recorded execution that it was made from; None for others.
    """

    name: str
    input: str | Message = ""
    dependencies: JsonValue = field(default=None, converter=freeze)
    tags: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    expected: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    calls: tuple[CaseCall, ...] = field(default=(), converter=tuple[CaseCall, ...])
    origin: CaseOrigin | None = None

    def __attrs_post_init__(self) -> None:
        check_types(self)
        if not self.name.strip():
            raise InvalidParameter("a case needs a name: Case(name='refund of order 7', …)")

    @property
    def version(self) -> str:
        """A fingerprint of everything in the case but its name: results of different versions are not compared."""
        plain = {key: value for key, value in self.to_plain().items() if key != "name"}
        return hashlib.sha256(_canonical(plain)).hexdigest()[:_VERSION_CHARACTERS]

    @property
    def note(self) -> CaseNote:
        """What a result says about the case."""
        return CaseNote(self.name, self.tags, self.version)

    @property
    def text(self) -> str:
        """The text of the input."""
        return self.input if isinstance(self.input, str) else self.input.text

    def to_plain(self) -> dict[str, Any]:
        """Return the case as plain JSON data, as a line of a file holds it."""
        plain: dict[str, Any] = {"name": self.name}
        if self.input:
            plain["input"] = self.input if isinstance(self.input, str) else to_plain(self.input)
        values = {"dependencies": self.dependencies, "tags": self.tags, "expected": self.expected}
        plain |= {name: parse_json(format_json(value)) for name, value in values.items() if value}
        if self.calls:
            plain["calls"] = [to_plain(call) for call in self.calls]
        if self.origin is not None:
            plain["origin"] = to_plain(self.origin)
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Case:
        """Read a case from plain JSON data of `to_plain`.

        Raises:
            InvalidParameter: it has an unknown key, or no name.
            InvalidDocument: a value is of another type.
        """
        known = ("name", "input", "dependencies", "tags", "expected", "calls", "origin")
        unknown = next((key for key in data if key not in known), None)
        if unknown is not None:
            raise InvalidParameter(f"a case has {', '.join(known)}, and no {unknown!r}{suggest(unknown, known)}")
        if "name" not in data:
            raise InvalidParameter(f"a case needs a name; this one has {', '.join(data) or 'nothing'}")
        given = data.get("input", "")
        return cls(
            name=data["name"],
            input=given if isinstance(given, str) else from_plain(given, Message),
            dependencies=data.get("dependencies"),
            tags=data.get("tags", ()),
            expected=data.get("expected", {}),
            calls=[from_plain(call, CaseCall) for call in data.get("calls", ())],
            origin=from_plain(data["origin"], CaseOrigin) if "origin" in data else None,
        )


def _canonical(plain: dict[str, Any]) -> bytes:
    """Return equal bytes for equal JSON, whatever the order of keys."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(value[key]) for key in sorted(value)}
        return [ordered(item) for item in value] if isinstance(value, list) else value

    return format_json(ordered(plain))


class Cases(Sequence[Case]):
    """Cases in an order, each with a name of its own.

    Args:
        cases: the cases.

    Raises:
        InvalidParameter: two have the same name, or something else is not a `Case`.
    """

    def __init__(self, cases: Iterable[Case] = ()) -> None:
        self._cases = tuple(cases)
        given: tuple[object, ...] = self._cases
        strange = next((case for case in given if not isinstance(case, Case)), None)
        if strange is not None:
            raise InvalidParameter(f"cases are made of Case(…) objects, not of {strange!r:.100}")
        name, count = next(iter(Counter(case.name for case in self._cases).most_common(1)), ("", 0))
        if count > 1:
            raise InvalidParameter(f"{count} cases are named {name!r}; a result tells cases apart by their names")

    @overload
    def __getitem__(self, index: int) -> Case: ...

    @overload
    def __getitem__(self, index: slice) -> Cases: ...

    def __getitem__(self, index: int | slice) -> Case | Cases:
        return Cases(self._cases[index]) if isinstance(index, slice) else self._cases[index]

    def __len__(self) -> int:
        return len(self._cases)

    def __iter__(self) -> Iterator[Case]:
        return iter(self._cases)

    def __eq__(self, other: object) -> bool:
        return self._cases == other._cases if isinstance(other, Cases) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._cases)

    def __add__(self, other: Iterable[Case]) -> Cases:
        return Cases((*self._cases, *other))

    def __repr__(self) -> str:
        return f"Cases({', '.join(case.name for case in self._cases[:5])}{', …' if len(self) > 5 else ''})"  # noqa: PLR2004  # as many as a line shows

    def tagged(self, *tags: str) -> Cases:
        """Return the cases that have all these tags."""
        return Cases(case for case in self._cases if set(tags) <= set(case.tags))

    def named(self, name: str) -> Case:
        """Return a case by its name.

        Raises:
            InvalidParameter: there is none; the error offers the closest name.
        """
        found = next((case for case in self._cases if case.name == name), None)
        if found is None:
            raise InvalidParameter(f"there is no case {name!r}{suggest(name, [case.name for case in self._cases])}")
        return found

    # --- files --------------------------------------------------------------------------------------------------

    def to_jsonl(self) -> str:
        """Return the cases as JSON, one a line, for a file that people review."""
        return "".join(f"{format_json(case.to_plain()).decode()}\n" for case in self._cases)

    @classmethod
    def from_jsonl(cls, path: str | Path) -> Cases:
        """Read cases from a file with one JSON object a line; empty lines and lines that begin with `#` are left out.

        Raises:
            InvalidFile: a line is not a case; names the line.
            OSError: the file cannot be read.
        """
        lines = enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1)
        return cls._read(path, ((number, line) for number, line in lines if line.strip() and line.lstrip()[0] != "#"))

    @classmethod
    def _read(cls, path: str | Path, lines: Iterable[tuple[int, str]]) -> Cases:
        cases = []
        for number, line in lines:
            try:
                cases.append(Case.from_plain(parse_json(line)))
            except (ValueError, TypeError, AttributeError) as error:
                raise InvalidFile(f"{path}:{number}: {error}") from error
        return cls(cases)

    @classmethod
    def from_csv(cls, path: str | Path) -> Cases:
        """Read cases from a table with the columns `name`, `input`, `tags` (separated by spaces) and `expected.…`.

        A cell of an expectation is JSON, or else a text: `expected.answer`, `expected.calls`. An empty cell is no expectation.
        A table without the column `name` names its cases by the number of their lines.

        Raises:
            InvalidFile: it has another column, or a row is not a case; names the line.
            OSError: the file cannot be read.
        """
        reader = csv.DictReader(io.StringIO(Path(path).read_text(encoding="utf-8-sig")), strict=True)
        cases = []
        try:
            for row in reader:
                cases.append(_case_of_row(row, reader.line_num))  # noqa: PERF401  # the error names the line
        except (ValueError, TypeError, csv.Error) as error:
            raise InvalidFile(f"{path}:{reader.line_num}: {error}") from error
        return cls(cases)

    # --- journals -----------------------------------------------------------------------------------------------

    @classmethod
    async def from_journal(
        cls,
        journal: CanJournal,
        *,
        where: Where | Iterable[str] | None = None,
        each_decision: bool = False,
        tags: Iterable[str] = (),
        limit: int | None = None,
    ) -> Cases:
        """Make cases of recorded executions; each trial of one is a fork. Agents that serve calls of others, forks, and trials of evals are left out.

        Args:
            journal: where they are recorded; it is only read.
            where: a function of the summary of an execution that says whether to take it, or the ids to take; None for all.
            each_decision: whether each decision of the model becomes a case, from which candidates go on; otherwise each
                execution becomes one, from its beginning.
            tags: tags for the cases, besides the name of the agent.
            limit: how many executions to take at most, the newest first; None for all.

        Raises:
            UnknownExecution: an id is not recorded.
            JournalCorrupt: records are damaged.
        """
        ids = None if where is None or callable(where) else tuple(where)
        heads = await _heads(journal, where if callable(where) else None, ids)
        cases: list[Case] = []
        for head in heads[:limit]:
            state = await state_at(journal, head.execution_id)
            steps = (
                [step.number - 1 for step in state.steps if step.finish_reason is not None] if each_decision else [0]
            )
            cases += [_case_of_execution(head, state, step, (*tags,), whole=not each_decision) for step in steps]
        return cls(cases)


async def _heads(journal: CanJournal, where: Where | None, ids: Sequence[str] | None) -> list[ExecutionHead]:
    listed = await journal.list(limit=None)
    by_id = {head.execution_id: head for head in listed}
    if ids is not None:
        for each in ids:
            if each not in by_id:
                await state_at(journal, each)  # raises the error that names it
        return [by_id[each] for each in ids]
    own = [  # a trial of an eval is not work
        head
        for head in listed
        if not head.forked_from
        and not head.execution_id.startswith(TRIALS)
        and root_of(head.execution_id, by_id.__contains__) == head.execution_id
    ]
    return [head for head in own if where is None or where(head)]


def _case_of_execution(
    head: ExecutionHead, state: AgentState, step: int, tags: tuple[str, ...], *, whole: bool
) -> Case:
    name = head.execution_id if whole else f"{head.execution_id}#{step + 1}"
    named = (head.agent_name,) if head.agent_name else ()
    origin = CaseOrigin(execution_id=head.execution_id, at_step=step, last_hash=head.last_hash)
    first = next((message for message in state.messages if message.role == "user"), None)
    # For people who review the file: the trial gets the recorded conversation.
    return Case(name=name, input=first.text if first is not None else "", tags=(*named, *tags), origin=origin)


def _case_of_row(row: Mapping[str | Any, Any], line: int) -> Case:
    expected: dict[str, Any] = {}
    for column, cell in row.items():
        if column is None or cell is None:
            raise InvalidParameter("the row has more or fewer cells than the table has columns")
        kind, _, name = column.partition(".")
        if kind == "expected" and name and cell:
            expected[name] = _json_or_text(cell)
        elif column not in {"name", "input", "tags", "dependencies"} and not (kind == "expected" and name):
            raise InvalidParameter(
                f"there is no column {column!r}; there are name, input, tags, dependencies, expected.…"
            )
    return Case(
        name=row.get("name") or f"line {line}",
        input=row.get("input") or "",
        tags=(row.get("tags") or "").split(),
        dependencies=_json_or_text(row["dependencies"]) if row.get("dependencies") else None,
        expected=expected,
    )


def _json_or_text(cell: str) -> Any:
    try:
        return parse_json(cell)
    except ValueError:
        return cell
