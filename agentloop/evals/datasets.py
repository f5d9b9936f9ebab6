"""Cases in the files of others: datasets of pydantic-evals, samples of OpenAI's evals, tables of LangSmith.

What a case of ours has no place for is kept in its expectations under the name that it had, and written again on export: `evaluators`
and `metadata` of pydantic-evals, `metadata` of LangSmith.

Sources: https://ai.pydantic.dev/evals/how-to/dataset-serialization for pydantic-evals;
https://github.com/openai/evals/blob/main/docs/build-eval.md for samples of OpenAI's evals;
https://docs.langchain.com/langsmith/manage-datasets-programmatically (`upload_csv`) and
https://docs.smith.langchain.com/reference/data_formats/example_data_format for LangSmith.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from agentloop.errors.hints import suggest
from agentloop.errors.kinds import InvalidFile, InvalidParameter
from agentloop.evals.cases import Case, Cases
from agentloop.toolkits.front_matter import read_yaml, write_yaml
from agentloop.values.json import thaw
from agentloop.values.secrets import open_private

DatasetFormat: TypeAlias = Literal["pydantic-evals", "openai", "langsmith"]
FORMATS: Final[tuple[DatasetFormat, ...]] = get_args(DatasetFormat)
"""The formats of others."""

_BY_SUFFIX: Final[Mapping[str, DatasetFormat]] = {
    ".yaml": "pydantic-evals",
    ".yml": "pydantic-evals",
    ".json": "pydantic-evals",
    ".jsonl": "openai",
    ".csv": "langsmith",
}
_TEXT_KEYS: Final = ("input", "question", "query", "prompt", "text", "message")
"""The names under which the question stands where an input has several values."""
_ANSWER_KEYS: Final = ("output", "answer", "expected", "response", "text")
_INPUTS: Final = "inputs"
_OUTPUTS: Final = "outputs"
_METADATA: Final = "metadata"


def format_of(path: str | Path) -> DatasetFormat:
    """Return the format of a file by its suffix: `.yaml`, `.yml` and `.json` of pydantic-evals, `.jsonl` of OpenAI, `.csv` of LangSmith.

    Raises:
        InvalidParameter: the suffix is another one.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _BY_SUFFIX:
        raise InvalidParameter(f"{path}: the format cannot be told by the name; it is one of {', '.join(FORMATS)}")
    return _BY_SUFFIX[suffix]


def read_dataset(
    path: str | Path,
    format: DatasetFormat | None = None,  # noqa: A002  # the word for it
    *,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
) -> Cases:
    """Read cases from a file of another library.

    An input that is a text becomes the input of the case. Of one with several values, the text under `input`, `question`, `query`,
    `prompt`, `text` or `message` does, or the only text; all of it becomes the dependencies, from which a candidate makes what its tools
    need. An expected output that is a text becomes `expected["answer"]`, another one `expected["fields"]` if it is an object, or else
    `expected["output"]`. Several ideal answers become `expected["answers"]`.

    Args:
        path: the file.
        format: its format; by default, `format_of` its name.
        inputs: for LangSmith, the columns that are inputs; by default `inputs` with JSON in it, or those named like `input_…`, `inputs.…` or
            as above.
        outputs: for LangSmith, the columns that are expected outputs; by default `outputs`, or those named alike.

    Raises:
        InvalidFile: it is not of this format; names the line or the case.
        InvalidParameter: the format cannot be told, or a column is not in the table.
        ConfigurationError: it is YAML, and the extra `yaml` is not installed.
        OSError: it cannot be read.
    """
    text = Path(path).read_text(encoding="utf-8-sig")
    kind = format or format_of(path)
    if kind not in FORMATS:
        raise InvalidParameter(f"there is no format {kind!r}{suggest(kind, FORMATS)}; known are {', '.join(FORMATS)}")
    if (inputs or outputs) and kind != "langsmith":
        raise InvalidParameter("columns are chosen of tables only, which LangSmith has")
    if kind == "pydantic-evals":
        return Cases(_unique(_read_pydantic(path, text)))
    if kind == "openai":
        return Cases(_unique(_read_openai(path, text)))
    return Cases(_unique(_read_langsmith(path, text, inputs, outputs)))


def write_dataset(cases: Sequence[Case], path: str | Path, format: DatasetFormat | None = None) -> None:  # noqa: A002  # the word for it
    """Write cases into a file of another library, which `read_dataset` reads again.

    Args:
        cases: the cases.
        path: the file; an existing one is replaced.
        format: its format; by default, `format_of` its name.

    Raises:
        InvalidParameter: the format cannot be told, or a case has no place in it: one that was made from a recorded execution has no input
            of its own.
        ConfigurationError: it is YAML, and the extra `yaml` is not installed.
        OSError: it cannot be written.
    """
    kind = format or format_of(path)
    for case in cases:
        if case.origin is not None and case.origin.at_step:
            raise InvalidParameter(
                f"{case.name!r} goes on in the middle of a recorded execution; other libraries have cases with an input only"
            )
    writers: Mapping[str, Callable[[Sequence[Case], Path], str]] = {
        "pydantic-evals": _write_pydantic,
        "openai": _write_openai,
        "langsmith": _write_langsmith,
    }
    if kind not in writers:
        raise InvalidParameter(f"there is no format {kind!r}{suggest(kind, FORMATS)}; known are {', '.join(FORMATS)}")
    text = writers[kind](cases, Path(path))
    with open(path, "w", encoding="utf-8", newline="", opener=open_private) as file:
        file.write(text)


def _unique(cases: Iterator[Case]) -> Iterator[Case]:
    """Yield cases with names of their own: the second `x` becomes `x (2)`."""
    seen: dict[str, int] = {}
    for case in cases:
        seen[case.name] = seen.get(case.name, 0) + 1
        number = seen[case.name]
        yield case if number == 1 else Case.from_plain({**case.to_plain(), "name": f"{case.name} ({number})"})


# --- inputs and outputs -----------------------------------------------------------------------------------------------


def _input_of(given: Any) -> tuple[str, Any]:
    """Return the text of an input, and the dependencies: None where the text is all of it."""
    if isinstance(given, str):
        return given, None
    if isinstance(given, Mapping):
        texts = {key: value for key, value in given.items() if isinstance(value, str)}
        named = next((texts[key] for key in _TEXT_KEYS if key in texts), None)
        if named is None and len(texts) == 1:
            (named,) = texts.values()
        if named is not None:
            return named, dict(given)
    return json.dumps(given, ensure_ascii=False), given


def _input_from(case: Case) -> Any:
    """Return the input as other libraries have it: the dependencies, if the text is in them."""
    data = thaw(case.dependencies)
    if data is None:
        return case.text
    text, found = _input_of(data)
    if found is not None and text == case.text:
        return data
    return {"input": case.text, "dependencies": data}


def _expected_of(output: Any) -> dict[str, Any]:
    if output is None:
        return {}
    if isinstance(output, str):
        return {"answer": output}
    return {"fields": output} if isinstance(output, Mapping) else {"output": output}


def _output_from(expected: Mapping[str, Any]) -> Any:
    return next((expected[key] for key in ("answer", "fields", "output", "answers") if key in expected), None)


def _tags_of(metadata: Any) -> list[str]:
    """Return tags: those in `tags`, and `key:value` for each other plain value."""
    if not isinstance(metadata, Mapping):
        return []
    tags = [str(tag) for tag in metadata.get("tags", ())] if isinstance(metadata.get("tags", ()), list) else []
    plain = {key: value for key, value in metadata.items() if isinstance(value, str | bool | int)}
    return [
        *tags,
        *[f"{key}:{json.dumps(value) if isinstance(value, bool) else value}" for key, value in plain.items()],
    ]


def _metadata_from(case: Case) -> Any:
    kept = thaw(case.expected.get(_METADATA))
    if kept is not None or not case.tags:
        return kept
    return {"tags": [*case.tags]}


# --- pydantic-evals ---------------------------------------------------------------------------------------------------


def _read_pydantic(path: str | Path, text: str) -> Iterator[Case]:
    try:
        data = json.loads(text) if Path(path).suffix.lower() == ".json" else read_yaml(text)
    except InvalidFile as error:
        raise InvalidFile(f"{path}:{error.line}: {error}", error.line) from error
    except ValueError as error:
        raise InvalidFile(f"{path}: it is not JSON: {error}") from error
    if not isinstance(data, Mapping) or not isinstance(data.get("cases"), list):
        raise InvalidFile(f"{path}: a dataset of pydantic-evals is an object with a list `cases`")
    shared = data.get("evaluators") or []
    for number, each in enumerate(data["cases"], 1):
        if not isinstance(each, Mapping) or _INPUTS not in each:
            raise InvalidFile(f"{path}: case {number} has no `inputs`")
        given, dependencies = _input_of(each[_INPUTS])
        expected = _expected_of(each.get("expected_output"))
        evaluators = [*shared, *(each.get("evaluators") or [])]
        kept = {"evaluators": evaluators, _METADATA: each.get(_METADATA)}
        yield Case(
            name=each.get("name") or f"case {number}",
            input=given,
            dependencies=dependencies,
            tags=_tags_of(each.get(_METADATA)),
            expected={**expected, **{key: value for key, value in kept.items() if value}},
        )


def _write_pydantic(cases: Sequence[Case], path: Path) -> str:
    entries = list[dict[str, Any]]()
    for case in cases:
        expected = thaw(case.expected)
        entry: dict[str, Any] = {"name": case.name, _INPUTS: _input_from(case)}
        entry |= {_METADATA: metadata} if (metadata := _metadata_from(case)) is not None else {}
        entry |= {"expected_output": output} if (output := _output_from(expected)) is not None else {}
        entry |= {"evaluators": expected["evaluators"]} if expected.get("evaluators") else {}
        entries.append(entry)
    data = {"name": path.stem, "cases": entries}
    if path.suffix.lower() == ".json":
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return write_yaml(data)


# --- OpenAI's evals ---------------------------------------------------------------------------------------------------


def _read_openai(path: str | Path, text: str) -> Iterator[Case]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            sample = json.loads(line)
        except ValueError as error:
            raise InvalidFile(f"{path}:{number}: it is not JSON: {error}", number) from error
        if not isinstance(sample, Mapping) or "input" not in sample:
            raise InvalidFile(f"{path}:{number}: a sample of OpenAI's evals is an object with `input`", number)
        given, dependencies = _chat_of(sample["input"], f"{path}:{number}", number)
        ideal = sample.get("ideal")
        expected = {"answers": ideal} if isinstance(ideal, list) else _expected_of(ideal)
        others = {key: value for key, value in sample.items() if key not in {"input", "ideal", "name"}}
        expected |= {_METADATA: others} if others else {}
        yield Case(
            name=str(sample.get("name") or f"sample {number}"),
            input=given,
            dependencies=dependencies,
            tags=_tags_of(others),
            expected=expected,
        )


def _chat_of(given: Any, place: str, line: int) -> tuple[str, Any]:
    """Return the last message of the user, and the conversation where there is more than that."""
    if isinstance(given, str):
        return given, None
    messages = given if isinstance(given, list) else [given]
    texts = [
        each["content"]
        for each in messages
        if isinstance(each, Mapping) and each.get("role") == "user" and isinstance(each.get("content"), str)
    ]
    if not texts:
        raise InvalidFile(f"{place}: the input has no message of the user", line)
    return texts[-1], None if len(messages) == 1 else {"messages": messages}


def _write_openai(cases: Sequence[Case], _: Path) -> str:
    lines = list[str]()
    for case in cases:
        expected, data = thaw(case.expected), thaw(case.dependencies)
        chat = data.get("messages") if isinstance(data, dict) else None
        sample: dict[str, Any] = {"input": chat or [{"role": "user", "content": case.text}]}
        ideal = expected.get("answers", _output_from(expected))
        sample |= {} if ideal is None else {"ideal": ideal if isinstance(ideal, str | list) else json.dumps(ideal)}
        kept = expected.get(_METADATA)
        sample |= {"name": case.name, **(kept if isinstance(kept, dict) else {})}
        lines.append(json.dumps(sample, ensure_ascii=False) + "\n")
    return "".join(lines)


# --- LangSmith --------------------------------------------------------------------------------------------------------


def _read_langsmith(path: str | Path, text: str, inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Case]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    columns = list(reader.fieldnames or ())
    inputs = _columns(columns, inputs, _INPUTS, _TEXT_KEYS)
    outputs = _columns([each for each in columns if each not in inputs], outputs, _OUTPUTS, _ANSWER_KEYS)
    if not inputs:
        raise InvalidParameter(
            f"{path}: which columns are inputs cannot be told; name them, of {', '.join(columns) or 'none'}"
        )
    others = [each for each in columns if each not in {*inputs, *outputs, "name", "id", "created_at", "modified_at"}]
    try:
        for number, row in enumerate(reader, 1):
            if None in row or None in row.values():
                raise InvalidFile(
                    f"{path}:{reader.line_num}: the row has more or fewer cells than the table has columns"
                )
            given, dependencies = _input_of(_object_of(row, inputs, _INPUTS))
            output = _object_of(row, outputs, _OUTPUTS) if outputs else None
            if isinstance(output, Mapping) and len(output) == 1 and isinstance(next(iter(output.values())), str):
                (output,) = output.values()
            metadata = _object_of(row, others, _METADATA) if others else None
            metadata = (
                {key: value for key, value in metadata.items() if value != ""}
                if isinstance(metadata, Mapping)
                else None
            )
            expected = _expected_of(output if output != "" else None) | ({_METADATA: metadata} if metadata else {})
            yield Case(
                name=row.get("name") or row.get("id") or f"example {number}",
                input=given,
                dependencies=dependencies,
                tags=_tags_of(metadata),
                expected=expected,
            )
    except csv.Error as error:
        raise InvalidFile(f"{path}:{reader.line_num}: {error}", reader.line_num) from error


def _columns(columns: Sequence[str], named: Sequence[str], whole: str, usual: Sequence[str]) -> list[str]:
    """Return the columns of inputs or outputs: those that were named, the one with all of them, or those with a usual name.

    Raises:
        InvalidParameter: one that was named is not there.
    """
    for each in named:
        if each not in columns:
            raise InvalidParameter(
                f"there is no column {each!r}{suggest(each, columns)}; there are {', '.join(columns)}"
            )
    if named:
        return list(named)
    if whole in columns:
        return [whole]
    single = whole.removesuffix("s")
    prefixed = [each for each in columns if each.startswith((f"{single}_", f"{whole}_", f"{single}.", f"{whole}."))]
    return prefixed or [each for each in columns if each in usual][:1]


def _object_of(row: Mapping[str, str], columns: Sequence[str], whole: str) -> Any:
    """Return the values of columns: those of the one that has all as JSON, or by their names without the prefix."""
    if list(columns) == [whole]:
        return _json_or_text(row[whole])
    single = whole.removesuffix("s")
    found = dict[str, Any]()
    for column in columns:
        name = column
        for prefix in (f"{whole}.", f"{whole}_", f"{single}.", f"{single}_"):
            name = name.removeprefix(prefix)
        found[name or column] = _json_or_text(row[column])
    if whole == _METADATA and isinstance(inner := found.get(_METADATA), Mapping):
        found = {**{key: value for key, value in found.items() if key != _METADATA}, **inner}
    # One column with a usual name is the text itself.
    if whole == _INPUTS and len(found) == 1 and isinstance(only := next(iter(found.values())), str):
        return only
    return found


def _json_or_text(cell: str) -> Any:
    """Return a JSON object or list of a cell, or its text; a number or a word is the text that somebody wrote."""
    if cell[:1] not in {"{", "["}:
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _write_langsmith(cases: Sequence[Case], _: Path) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(["name", _INPUTS, _OUTPUTS, _METADATA])
    for case in cases:
        given, output = _input_from(case), _output_from(thaw(case.expected))
        values = {
            _INPUTS: given if isinstance(given, dict) else {"input": given},
            _OUTPUTS: {} if output is None else output if isinstance(output, dict) else {"output": output},
            _METADATA: _metadata_from(case) or {},
        }
        writer.writerow(
            [case.name, *[json.dumps(value, ensure_ascii=False) if value else "" for value in values.values()]]
        )
    return out.getvalue()
