"""The kernel of a tool call stays small: its files name no feature, its classes few things, and one call takes a short way."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import agentloop

ROOT = Path(agentloop.__file__).parent
ROOMS = (
    "errors",
    "values",
    "contracts",
    "events",
    "tools",
    "interception",
    "compilers",
    "executors",
    "drivers",
    "loop",
)
RECORDS = r"logs?|journals?|claims?|claimed"
LAYERS = RECORDS + r"|programs?|pins?|pinned|early|eager"
"""Words for what a layer does about calls; the kernel that it is laid around does not know it."""
KERNEL = {
    "executors/batch.py": LAYERS,
    "executors/invocation.py": LAYERS,
    "executors/toolbox.py": LAYERS,
    "loop/run.py": RECORDS,
}

MAX_METHODS = 30
MAX_FIELDS = 22
LARGER = {"loop/agent_loop.py:AgentLoop": (22, 59), "values/state.py:AgentState": (9, 49)}
"""The fields and methods of classes above the limit, most of them public methods; these numbers may only get smaller."""
LARGER_FEATURES = {"executors/journaled_call.py:JournaledCall": (10, 35)}
"""The same for classes of features, which the kernel does not know."""

FEATURES = {
    "executors/labeled_calls.py",
    "drivers/labeled_inference.py",
    "interception/untrusted.py",
    "executors/journaled_call.py",
    "executors/fencing.py",
    "executors/approval.py",
    "executors/definition_pins.py",
    "executors/program_calls.py",
    "executors/inner_calls.py",
    "executors/intercepted_call.py",
    "executors/early_start.py",
    "executors/eager.py",
    "drivers/eager_start.py",
    "drivers/recorded_inference.py",
    "compilers/clearing.py",
    "compilers/shortening.py",
    "compilers/stale.py",
    "compilers/window.py",
    "contracts/run_log.py",
    "loop/dependencies.py",
    "values/run_requests.py",
    "loop/handoff.py",
    "loop/inbox.py",
    "loop/in_charge.py",
    "models/modes/asked_server.py",
    "models/modes/selection.py",
    "models/server_abilities.py",
    "models/server_questions.py",
    "values/provenance.py",
}
FEATURE_ROOMS = ("durable", "mcp", "models/programs", "models/text_calls", "policies", "service", "testing", "toolkits")
WITHOUT_LISTENERS = {"events/bus.py", "events/operations.py"}
"""What a turn enters of events that nothing listens to: the questions whether something does."""

MAX_FILES = 50
MAX_HOPS = 225
MAX_HOPS_OUTSIDE_OF_VALUES = 146
MAX_HOPS_WITH_A_JOURNAL = 435


def words_of(name: str, features: str) -> set[str]:
    """Return the words of a module's names, comments and texts, with those that an underscore joins taken apart."""
    text = (ROOT / name).read_text()
    text = re.sub(r"\blog_failure\b|\b_log_fields\b", "", text)  # what hands the error of a tool to the logger
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ").lower()
    return set(re.findall(rf"\b(?:{features})\b", apart))


@pytest.mark.parametrize("name", KERNEL)
def test_the_kernel_names_no_feature(name: str) -> None:
    """The files that run calls and steps name none of the features around them; the word for the program's logger is another one."""
    assert words_of(name, KERNEL[name]) == set()


def fields_of(node: ast.ClassDef) -> set[str]:
    """Return the names of the fields that a class declares, or assigns in its `__init__`."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and "ClassVar" not in ast.unparse(each.annotation)
    }
    creates = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    return declared | {
        each.attr
        for method in creates
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def classes() -> Iterator[tuple[str, int, int]]:
    """Yield the classes of the kernel's rooms, each with the numbers of its fields and methods."""
    for path in [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                yield f"{path.relative_to(ROOT).as_posix()}:{node.name}", len(fields_of(node)), len(methods)


def test_classes_of_the_kernel_are_small() -> None:
    """A class has at most 22 fields and 30 methods; those that have more are listed with their numbers, which only get smaller."""
    large = {name: (fields, methods) for name, fields, methods in classes() if exceeds(fields, methods)}
    known = LARGER | LARGER_FEATURES
    assert not [name for name in large if name not in known], large
    grown = [name for name, (fields, methods) in large.items() if fields > known[name][0] or methods > known[name][1]]
    assert not grown, large
    assert large.keys() == known.keys(), "a class is small by now: take it off the list"


def exceeds(fields: int, methods: int) -> bool:
    """Return whether a class has more than it may have."""
    return fields > MAX_FIELDS or methods > MAX_METHODS


@pytest.mark.parametrize(
    "name",
    ["executors/batch.py:Batch", "executors/call.py:Call", "executors/invocation.py:ToolInvocation", "loop/run.py:Run"],
)
def test_the_classes_on_the_way_of_a_call_are_counted(name: str) -> None:
    """Fields and methods of batch, call, invocation and run are found, and are few."""
    ((fields, methods),) = [(fields, methods) for each, fields, methods in classes() if each == name]
    assert min(fields, methods) > 0
    assert not exceeds(fields, methods)


@cache
def files_on_the_way(*arguments: str) -> list[str]:
    """Return the files that a run enters between the answer with a call and the next request, in order."""
    command = [sys.executable, "-m", "tests.way_of_a_call", *arguments]
    printed = subprocess.run(command, cwd=ROOT.parent, check=True, capture_output=True, text=True)
    files: list[str] = json.loads(printed.stdout)
    return files


def test_one_call_takes_a_short_way() -> None:
    """From the answer of the model to its next request, a call goes through few files, and changes between them seldom."""
    files = files_on_the_way()
    assert len(set(files)) <= MAX_FILES, sorted(set(files))
    assert len(files) - 1 <= MAX_HOPS
    outside = [file for file in files if not file.startswith("values/")]
    hops = sum(file != before for before, file in pairwise(outside))
    assert hops <= MAX_HOPS_OUTSIDE_OF_VALUES


def test_a_recorded_call_takes_no_longer_way_than_before(tmp_path: Path) -> None:
    """The records of a call add what the journal needs, and nothing else."""
    files = files_on_the_way(str(tmp_path / "journal.db"))
    assert len(files) - 1 <= MAX_HOPS_WITH_A_JOURNAL


def test_a_call_without_features_runs_no_line_of_one() -> None:
    """A turn without journal, interceptors, listeners, decisions, programs, early starts, handoffs, messages, windows and questions to
    servers enters none of their files, and makes no event."""
    files = set(files_on_the_way())
    assert not FEATURES & files
    assert not [file for file in files if file.startswith(tuple(f"{room}/" for room in FEATURE_ROOMS))]
    assert {file for file in files if file.startswith("events/")} <= WITHOUT_LISTENERS


def test_the_files_of_features_are_there(tmp_path: Path) -> None:
    """The lists have names of files and rooms, and a journal and a listener bring their own onto the way: else they would show nothing."""
    assert all((ROOT / file).is_file() for file in FEATURES | WITHOUT_LISTENERS)
    assert all((ROOT / room).is_dir() for room in FEATURE_ROOMS)
    assert set(files_on_the_way("", "listener")) - set(files_on_the_way()) == {"events/tool_calls.py"}
    files = set(files_on_the_way(str(tmp_path / "journal.db")))
    assert {"executors/journaled_call.py", "executors/fencing.py", "drivers/recorded_inference.py"} <= files
