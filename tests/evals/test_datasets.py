"""Cases are read from the files of other libraries, and written so that these and we read them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop.errors.kinds import InvalidFile, InvalidParameter
from agentloop.evals import Case, CaseOrigin, Cases
from agentloop.evals.datasets import read_dataset, write_dataset

# As `Dataset.to_file` of pydantic-evals writes it: https://ai.pydantic.dev/evals/how-to/dataset-serialization
_PYDANTIC = """\
# yaml-language-server: $schema=my_tests_schema.json
name: my_tests
cases:
- name: Easy Capital Question
  inputs:
    question: What is the capital of France?
    context: null
  metadata:
    difficulty: easy
    confidence: 1.0
  expected_output:
    answer: Paris
    confidence: 1.0
  evaluators:
  - EqualsExpected
- inputs: hello
  expected_output: HELLO
evaluators:
- IsInstance: str
"""

# https://github.com/openai/evals/blob/main/evals/registry/data/README.md
_OPENAI = """\
{"input": [{"role": "system", "content": "Complete the phrase as concisely as possible."}, {"role": "user", "content": "Once upon a "}], "ideal": "time"}
{"input": [{"role": "user", "content": "2 + 2"}], "ideal": ["4", "four"], "difficulty": "easy"}
"""


def test_a_dataset_of_pydantic_evals_becomes_cases(tmp_path: Path) -> None:
    """Inputs, expected outputs, metadata and evaluators have their places, and nothing is lost."""
    path = tmp_path / "my_tests.yaml"
    path.write_text(_PYDANTIC)
    first, second = read_dataset(path)
    assert first.name == "Easy Capital Question"
    assert first.input == "What is the capital of France?"
    assert first.dependencies == {"question": "What is the capital of France?", "context": None}
    assert first.tags == ("difficulty:easy",)
    assert first.expected["fields"] == {"answer": "Paris", "confidence": 1.0}
    assert first.expected["evaluators"] == ({"IsInstance": "str"}, "EqualsExpected")
    assert (second.name, second.input, second.expected["answer"]) == ("case 2", "hello", "HELLO")


def test_samples_of_openai_become_cases(tmp_path: Path) -> None:
    """The last message of the user is the input, the conversation is kept, several ideals are several answers."""
    path = tmp_path / "samples.jsonl"
    path.write_text(_OPENAI)
    first, second = read_dataset(path)
    assert (first.name, first.input, first.expected["answer"]) == ("sample 1", "Once upon a ", "time")
    data = first.dependencies
    assert isinstance(data, dict)
    assert len(data["messages"]) == 2
    assert (second.input, second.expected["answers"], second.dependencies) == ("2 + 2", ("4", "four"), None)
    assert second.tags == ("difficulty:easy",)


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("question,answer,difficulty\nHow big?,Very,easy\n", {}),
        ("input_question,output_answer,difficulty\nHow big?,Very,easy\n", {}),
        ("q,a,difficulty\nHow big?,Very,easy\n", {"inputs": ["q"], "outputs": ["a"]}),
        (
            'id,inputs,outputs,metadata\n7,"{""question"": ""How big?""}","{""answer"": ""Very""}","{""difficulty"": ""easy""}"\n',
            {},
        ),
    ],
)
def test_tables_of_langsmith_become_cases(tmp_path: Path, table: str, options: dict[str, list[str]]) -> None:
    """Columns are found by their usual names, by their prefixes, as JSON, or are named."""
    path = tmp_path / "examples.csv"
    path.write_text(table)
    (case,) = read_dataset(path, **options)  # type: ignore[arg-type]  # the columns alone
    assert (case.input, case.expected["answer"], case.tags) == ("How big?", "Very", ("difficulty:easy",))


_CASES = Cases(
    [
        Case(name="plain", input="What is 1 + 1?", expected={"answer": "2"}, tags=("math",)),
        Case(
            name="fields",
            input="Refund 7.",
            dependencies={"question": "Refund 7.", "user": 3},
            expected={"fields": {"a": 1}},
        ),
        Case(name="umlaut", input='Größe, "neu"\nund so', dependencies={"db": "x"}, expected={"answer": "ja, 'so'"}),
        Case(name="nothing expected", input="Hello"),
    ]
)


@pytest.mark.parametrize("name", ["set.yaml", "set.json", "set.jsonl", "set.csv"])
def test_cases_that_are_written_are_read_again(tmp_path: Path, name: str) -> None:
    """In each format, names, inputs and expected answers come back; and a second time the file is the same."""
    path = tmp_path / name
    write_dataset(_CASES, path)
    found = read_dataset(path)
    assert [case.name for case in found] == [case.name for case in _CASES]
    assert [case.text for case in found] == [case.text for case in _CASES]
    assert [case.expected.get("answer") for case in found][::2] == ["2", "ja, 'so'"]
    again = tmp_path / f"again-{name}"
    write_dataset(found, again)
    third = read_dataset(again)
    assert [case.to_plain() for case in third] == [case.to_plain() for case in found]


def test_what_the_package_of_pydantic_evals_expects_is_written(tmp_path: Path) -> None:
    """The JSON has the keys of its schema and no others."""
    path = tmp_path / "set.json"
    write_dataset(_CASES, path)
    data = json.loads(path.read_text())
    assert set(data) == {"name", "cases"}
    assert {key for case in data["cases"] for key in case} <= {
        "name",
        "inputs",
        "metadata",
        "expected_output",
        "evaluators",
    }
    assert data["cases"][0] == {
        "name": "plain",
        "inputs": "What is 1 + 1?",
        "metadata": {"tags": ["math"]},
        "expected_output": "2",
    }


def test_two_cases_of_one_name_get_names_of_their_own(tmp_path: Path) -> None:
    """Names of others need not be unique, and ours are."""
    path = tmp_path / "examples.csv"
    path.write_text("name,question\nx,a\nx,b\n")
    assert [case.name for case in read_dataset(path)] == ["x", "x (2)"]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "cases: 3", "a list `cases`"),
        ("a.yaml", "cases:\n- name: x", "case 1 has no `inputs`"),
        ("a.yaml", "cases: [", "is not YAML"),
        ("a.json", "{", "is not JSON"),
        ("a.jsonl", '{"input": "x"}\nno', "a.jsonl:2: it is not JSON"),
        ("a.jsonl", '{"ideal": "x"}', "is an object with `input`"),
        ("a.jsonl", '{"input": [{"role": "system", "content": "x"}]}', "no message of the user"),
        ("a.csv", "question,answer\n1,2,3\n", "more or fewer cells"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_place(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """The error names the file and what is wrong."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidFile, match="a\\.") as caught:
        read_dataset(path)
    assert problem in str(caught.value)


def test_what_cannot_be_told_is_refused(tmp_path: Path) -> None:
    """A format without a suffix, columns that are not there or not known, and cases that begin in the middle of an execution."""
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(InvalidParameter, match="which columns are inputs cannot be told"):
        read_dataset(path)
    with pytest.raises(InvalidParameter, match="there is no column 'z'"):
        read_dataset(path, inputs=["z"])
    with pytest.raises(InvalidParameter, match="tables only"):
        read_dataset(path, "openai", inputs=["x"])
    with pytest.raises(InvalidParameter, match="cannot be told by the name"):
        write_dataset(_CASES, tmp_path / "a.txt")
    with pytest.raises(InvalidParameter, match="there is no format 'opena'"):
        read_dataset(path, "opena")  # type: ignore[arg-type]  # a mistake
    fork = Case(name="f", input="x", origin=CaseOrigin(execution_id="run-1", at_step=2))
    with pytest.raises(InvalidParameter, match="in the middle of a recorded execution"):
        write_dataset([fork], tmp_path / "a.jsonl")
