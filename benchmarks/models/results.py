"""What runs came to: a line of JSON for each, and the table of all."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, Self, TypeAlias

from attrs import asdict, define, field, frozen

from models.subjects import Ending, plain
from models.tasks import EFFECTS, Made, Task

Key: TypeAlias = tuple[str | int, ...]
"""What makes a run the same run: setup, code, subject, API, task, wording and seed."""

_Z = 1.959963984540054
"""The quantile of the normal distribution for 95 %."""


@frozen(kw_only=True)
class Result:
    """What a run came to.

    Attributes:
        setup: a digest of the model, the settings and the tasks.
        code: the code of the subject.
        subject: its name.
        api: the API that it used.
        task: the name of the task.
        kind: the kind of the task.
        wording: the number of the wording, from 0.
        seed: the seed.
        how: how it ended.
        solved: whether the needed calls were made and the answer is right.
        called: whether the needed calls were made.
        has_needs: whether the task needs calls.
        requests: the requests to the model.
        tokens: their tokens, with those of the answers.
        seconds: how long it took.
        repeats: calls that were made before with the same arguments.
        is_call_as_answer: whether the answer, which should be text, has a call in the notation of one.
        protocol_errors: what went wrong between library and server.
        error: why there is no answer.
        answer: the answer.
        calls: the calls that ran.
    """

    setup: str
    code: str
    subject: str
    api: str
    task: str
    kind: str
    wording: int
    seed: int
    how: str
    solved: bool
    called: bool
    has_needs: bool
    requests: int
    tokens: int
    seconds: float
    repeats: int
    is_call_as_answer: bool
    protocol_errors: Sequence[str] = ()
    error: str = ""
    answer: object = None
    calls: Sequence[Any] = ()

    @property
    def key(self) -> Key:
        """What makes it the same run."""
        return (self.setup, self.code, self.subject, self.api, self.task, self.wording, self.seed)


def judge(task: Task, ending: Ending, made: Sequence[Made]) -> dict[str, Any]:
    """Return the fields of a result that follow from the ending of a run and its calls."""
    called = task.has_calls(made)
    answer = plain(ending.answer)
    shown = [[call.tool, dict(call.arguments)] for call in made]
    return {
        "kind": task.kind,
        "how": ending.how,
        "solved": called and ending.how == "completed" and task.has_answer(ending.answer),
        "called": called,
        "has_needs": bool(task.needs),
        "repeats": len(shown) - len({json.dumps(call, sort_keys=True, default=str) for call in shown}),
        "is_call_as_answer": isinstance(answer, str) and is_call(answer, [each.__name__ for each in task.tools]),
        "error": ending.error[:1_000],
        "answer": answer[:1_000] if isinstance(answer, str) else answer,
        "calls": shown,
    }


def is_call(answer: str, tools: Iterable[str]) -> bool:
    """Return whether an answer has the name of a tool as a notation of calls has it: quoted, called, or as a tag."""
    return any(re.search(rf'"{name}"|<{name}\b|\b{name}\s*\(', answer) is not None for name in tools)


@define
class ResultFile:
    """The results of all runs so far, each written when it is there.

    Attributes:
        path: the file, with a line of JSON for each result. A line that was cut off by a crash is dropped.
        results: the results by their keys.
    """

    path: Path
    results: dict[Key, Result] = field(factory=dict)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a file, or begin one.

        Raises:
            SystemExit: a line is something else than a result.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            path.write_bytes(whole)
        opened = cls(path)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                result = Result(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise SystemExit(f"{path}, line {number} is no result ({error}): name another file") from None
            opened.results[result.key] = result
        return opened

    def add(self, result: Result) -> None:
        """Write a result."""
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(result), default=str) + "\n")
        self.results[result.key] = result


# --- the table ------------------------------------------------------------------------------------------------------


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, by Wilson's score (1927), from 0 to 1; without trials, nothing is known."""
    if not trials:
        return (0.0, 1.0)
    share, square = successes / trials, _Z * _Z
    center = share + square / (2 * trials)
    spread = _Z * sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    scale = 1 + square / trials
    low = 0.0 if successes == 0 else (center - spread) / scale
    return (low, 1.0 if successes == trials else (center + spread) / scale)


def summarize(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the figures of each subject on each API, in the order of the first result of each."""
    cells: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        cells[result.api, result.subject].append(result)
    return [{"api": api, "subject": subject, **_figures(found)} for (api, subject), found in cells.items()]


def _figures(results: Sequence[Result]) -> dict[str, Any]:
    solved, needing = sum(each.solved for each in results), [each for each in results if each.has_needs]
    tokens = sum(each.tokens for each in results)
    kinds: dict[str, list[bool]] = defaultdict(list)
    for each in results:
        kinds[each.kind].append(each.solved)
    return {
        "runs": len(results),
        "solved": solved,
        "interval": [round(limit, 4) for limit in wilson(solved, len(results))],
        "called": sum(each.called for each in needing),
        "needing": len(needing),
        "protocol_errors": sum(len(each.protocol_errors) for each in results),
        "requests": sum(each.requests for each in results),
        "tokens": tokens,
        "tokens_per_solved": round(tokens / solved) if solved else None,
        "repeats": sum(each.repeats for each in results),
        "calls_as_answers": sum(each.is_call_as_answer for each in results),
        "doubled_effects": sum(_doubled_effects(each.calls) for each in results),
        "ends": dict(Counter(each.how for each in results)),
        "kinds": {kind: [sum(each), len(each)] for kind, each in kinds.items()},
    }


def _doubled_effects(calls: Sequence[Any]) -> int:
    counts = Counter(json.dumps(call, sort_keys=True) for call in calls if call[0] in EFFECTS)
    return sum(count - 1 for count in counts.values())


_COLUMNS = (
    "API",
    "mode or library",
    "runs",
    "solved",
    "95 % interval",
    "right calls",
    "without an answer",
    "calls as answers",
    "repeated calls",
    "protocol errors",
    "tokens per solved task",
)


def render_table(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the figures as a table of Markdown."""
    lines = [f"| {' | '.join(_COLUMNS)} |", f"| --- | --- |{' ---: |' * (len(_COLUMNS) - 2)}"]
    for cell in cells:
        low, high = cell["interval"]
        unanswered = cell["runs"] - cell["ends"].get("completed", 0)
        columns = [
            cell["api"],
            cell["subject"],
            cell["runs"],
            f"{cell['solved']} ({cell['solved'] / cell['runs']:.0%})",
            f"{low:.0%} to {high:.0%}",
            f"{cell['called']} of {cell['needing']}",
            unanswered,
            cell["calls_as_answers"],
            cell["repeats"],
            cell["protocol_errors"],
            "-" if cell["tokens_per_solved"] is None else f"{cell['tokens_per_solved']:,}",
        ]
        lines.append(f"| {' | '.join(map(str, columns))} |")
    return "\n".join(lines)
