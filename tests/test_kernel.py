"""The kernel of a tool call stays small: its files name no feature, its classes few things, and one call takes a short way."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import attrs
import pytest

import agentloop
from agentloop.executors.batch import Batch
from agentloop.executors.call import Call

ROOT = Path(agentloop.__file__).parent
KERNEL = ("batch.py", "invocation.py", "toolbox.py")
FEATURES = re.compile(r"\b(logs?|journals?|claims?|claimed|programs?|pins?|pinned|early|eager)\b")
"""Words for what a layer does about calls; the kernel that it is laid around does not know it."""

MAX_METHODS = 30
MAX_FIELDS = 22
MAX_FILES = 50
MAX_HOPS = 250
MAX_HOPS_OUTSIDE_OF_VALUES = 160
MAX_HOPS_WITH_A_JOURNAL = 460  # 430 are wanted: this number may only get smaller


def words_of(name: str) -> set[str]:
    """Return the words of a module's names, comments and texts, with those that an underscore joins taken apart."""
    text = (ROOT / "executors" / name).read_text()
    text = re.sub(r"\blog_failure\b|\b_log_fields\b", "", text)  # what hands the error of a tool to the logger
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("_", " ").lower()
    return set(FEATURES.findall(apart))


@pytest.mark.parametrize("name", KERNEL)
def test_the_kernel_names_no_feature(name: str) -> None:
    """The files that run calls name no log, claim, program, pin or early start; the word for the program's logger is another one."""
    assert words_of(name) == set()


def test_a_batch_has_few_methods() -> None:
    """Order, groups and settling need no more than 30 methods."""
    tree = ast.parse((ROOT / "executors" / "batch.py").read_text())
    (batch,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == Batch.__name__]
    methods = [node.name for node in batch.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert len(methods) <= MAX_METHODS, methods


def test_a_call_has_few_fields() -> None:
    """All that a batch knows of a call is in one class with at most 22 fields."""
    fields = [field.name for field in attrs.fields(Call)]
    assert len(fields) <= MAX_FIELDS, fields


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
    """Without journal, interceptors, decisions, programs and early starts, the way of a call leads through none of their files."""
    features = (
        "journaled_call",
        "fencing",
        "approval",
        "definition_pins",
        "program_calls",
        "intercepted_call",
        "early_start",
    )
    files = files_on_the_way()
    assert not {f"executors/{name}.py" for name in features} & set(files)
    assert not [file for file in files if file.startswith("durable/")]
