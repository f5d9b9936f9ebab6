"""The bench of real models: what counts as solved, the intervals, what passes on the wire, and that a run goes on where it ended."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from attrs import evolve
from models.__main__ import Job, main, plan, run_jobs
from models.results import Result, ResultFile, is_call, judge, summarize, wilson
from models.serving import Meter, count_tokens, unpaired_calls
from models.subjects import NAMES, Ending, Subject
from models.tasks import TASKS, CityTemperature, Made, Task, contains

Script = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
TASK = {task.name: task for task in TASKS}


# --- scripted servers -----------------------------------------------------------------------------------------------


@contextmanager
def scripted_server(script: Script) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the URL of a server of Chat Completions that answers by a script, and the requests that it gets."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/v1/models"
            self._send(200 if known else 404, {"data": [{"id": "scripted"}]} if known else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append(body)
            self._send(*script(body))

        def _send(self, status: int, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


def completion(content: str | None, calls: Sequence[Mapping[str, Any]] = ()) -> tuple[int, dict[str, Any]]:
    """Return an answer of a model as Chat Completions has it, of 10 and 5 tokens."""
    made = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call["tool"], "arguments": json.dumps(call["arguments"])},
        }
        for number, call in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return 200, {"id": "1", "object": "chat.completion", "model": "scripted", "choices": [choice], "usage": usage}


def solution(task: Task, turn: int) -> list[dict[str, Any]] | str:
    """Return what a perfect model does in a turn: calls, or the answer."""
    needs = [{"tool": need.tool, "arguments": dict(need.arguments)} for need in task.needs]
    turns = [needs] if task.kind == "parallel" else [[need] for need in needs]
    if turn < len(turns):
        return turns[turn]
    return json.dumps(task.fields) if task.output_type else f"It is: {', '.join(task.says)}."


def task_of(body: Mapping[str, Any]) -> Task:
    question = next(str(message["content"]) for message in body["messages"] if message["role"] == "user")
    return next(task for task in TASKS if question in task.wordings)


def perfect(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    done = solution(task_of(body), sum(message["role"] == "assistant" for message in body["messages"]))
    return completion(done) if isinstance(done, str) else completion(None, done)


def perfect_structured(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    done = solution(task_of(body), sum(message["role"] == "assistant" for message in body["messages"]))
    if not task_of(body).tools:
        return completion(str(done))
    answer = json.loads(done) if isinstance(done, str) and task_of(body).output_type else done
    return completion(json.dumps({"next": answer if isinstance(answer, list) else [{"answer": answer}]}))


def run_bench(url: str, file: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the bench on a server, and return its exit code and what it has written."""
    code = main(["--model", url, "--apis", "chat", "--results", str(file), *options])
    return code, json.loads(file.with_suffix(".json").read_text())


@pytest.mark.parametrize(
    ("mode", "script", "wordings"), [("native", perfect, 3), ("structured", perfect_structured, 1)]
)
def test_a_perfect_model_solves_all_tasks(mode: str, script: Script, wordings: int, tmp_path: Path) -> None:
    """Each task can be solved in each wording, and the seed and the temperature are sent with every request."""
    file = tmp_path / "results.jsonl"
    with scripted_server(script) as (url, requests):
        code, summary = run_bench(url, file, "--modes", mode, "--seeds", "1", "--wordings", str(wordings))
    unsolved = [json.loads(line) for line in file.read_text().splitlines() if not json.loads(line)["solved"]]
    assert not unsolved
    assert code == 0
    [cell] = summary["cells"]
    assert (cell["runs"], cell["solved"], cell["called"]) == (20 * wordings, 20 * wordings, 16 * wordings)
    assert (cell["tokens"], cell["requests"]) == (15 * len(requests), len(requests))
    assert {(request["seed"], request["temperature"]) for request in requests} == {(1, 0.3)}


def test_a_model_that_knows_nothing_solves_nothing(tmp_path: Path) -> None:
    """Words without calls solve a greeting alone."""
    with scripted_server(lambda _: completion("I do not know.")) as (url, _):
        _, summary = run_bench(url, tmp_path / "results.jsonl", "--modes", "native", "--seeds", "1", "--wordings", "1")
    [cell] = summary["cells"]
    assert (cell["solved"], cell["called"], cell["kinds"]["no call"]) == (1, 0, [1, 2])


def test_a_refusal_is_a_protocol_error(tmp_path: Path) -> None:
    """An error of the server is counted, and the exit code says so."""
    with scripted_server(lambda _: (400, {"error": {"message": "no", "code": 400}})) as (url, _):
        code, summary = run_bench(
            url,
            tmp_path / "results.jsonl",
            "--modes",
            "native",
            "--seeds",
            "1",
            "--wordings",
            "1",
            "--tasks",
            "sum",
            "mail",
        )
    [cell] = summary["cells"]
    assert (code, cell["protocol_errors"], cell["ends"]) == (1, 2, {"failed": 2})


def test_another_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """A run does what no run before it has done, and a line that a crash has cut off is done again."""
    file = tmp_path / "results.jsonl"
    options = ["--modes", "native", "--seeds", "1", "--wordings", "2"]
    with scripted_server(perfect) as (url, requests):
        run_bench(url, file, *options, "--tasks", "greeting", "capital")
        file.write_text(file.read_text()[:-20])
        run_bench(url, file, *options, "--tasks", "greeting", "capital", "person")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        asked = len(requests)
        _, summary = run_bench(url, file, *options, "--tasks", "greeting", "capital", "person")
    assert sorted((line["task"], line["wording"]) for line in lines) == [
        (name, wording) for name in ("capital", "greeting", "person") for wording in (0, 1)
    ]
    assert (asked, len(requests)) == (7, 7)
    assert summary["runs"] == 6


# --- the order, and the limit ---------------------------------------------------------------------------------------


async def _unused(_: object) -> Ending:
    raise NotImplementedError


SUBJECT = Subject("native", "agentloop", ("chat",), _unused, "1")


def result_of(job: Job) -> Result:
    judged = judge(job.task, Ending("completed", "hello"), [])
    by, task = job.subject, job.task
    return Result(
        setup="s",
        code=by.code,
        subject=by.name,
        api=job.api,
        task=task.name,
        wording=job.wording,
        seed=job.seed,
        requests=1,
        tokens=1,
        seconds=1.0,
        **judged,
    )


def test_no_run_begins_after_the_limit(tmp_path: Path) -> None:
    """The time is looked at before each run, and what was done until then is kept."""
    jobs, ticks = list(plan([SUBJECT], ["chat"], TASKS, 3, 5)), count()
    file = ResultFile.open(tmp_path / "results.jsonl")
    run_jobs(jobs, file, result_of, limit_seconds=20, clock=lambda: next(ticks) * 5.0)
    assert 0 < len(file.results) < len(jobs) == 300
    assert ResultFile.open(file.path).results.keys() == file.results.keys()


def test_the_plan_is_balanced_at_every_moment() -> None:
    """After any number of runs, two subjects have had the same tasks but for one, and all kinds of tasks come early."""
    other = evolve(SUBJECT, name="structured")
    jobs = list(plan([SUBJECT, other], ["chat", "responses"], TASKS, 3, 2))
    assert len(jobs) == len({job.key("s") for job in jobs}) == 2 * 20 * 3 * 2
    done: Counter[str] = Counter()
    for job in jobs:
        done[job.subject.name] += 1
        assert abs(done["native"] - done["structured"]) <= 1
    assert {job.task.kind for job in jobs[:14]} == {task.kind for task in TASKS}


def test_results_of_other_code_or_settings_are_done_again(tmp_path: Path) -> None:
    """A result counts for the code, the settings, the wording and the seed that it has, and for no other."""
    [job] = plan([SUBJECT], ["chat"], [TASK["sum"]], 1, 1)
    others = [evolve(job, subject=evolve(SUBJECT, code="2")), evolve(job, wording=1), evolve(job, seed=2)]
    assert job.key("s") == result_of(job).key
    assert all(other.key("s") != job.key("s") for other in others)
    assert job.key("t") != job.key("s")


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    """A file that holds no results stays as it is."""
    file = tmp_path / "notes.txt"
    file.write_text("hello\n")
    with pytest.raises(SystemExit, match="line 1 is no result"):
        ResultFile.open(file)
    assert file.read_text() == "hello\n"


@pytest.mark.parametrize("options", [["--tasks", "summ"], ["--modes", "nativ"], ["--seeds", "0"], ["--wordings", "4"]])
def test_options_are_checked(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An option that names nothing ends the program before anything runs."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(options)
    assert "invalid choice" in capsys.readouterr().err


# --- what counts ----------------------------------------------------------------------------------------------------


def test_the_tasks_give_no_answer_away() -> None:
    """There are twenty tasks in three wordings each, and no wording holds a text that the answer must contain."""
    assert len(TASKS) == len(TASK) == 20
    for task in TASKS:
        assert len(set(task.wordings)) == 3
        assert not [text for text in task.says for wording in task.wordings if contains(wording, text)]
        assert {need.tool for need in task.needs} <= {tool.__name__ for tool in task.tools}


BOOKED = Made("book_room", {"room": 4, "hour": 15})
MAILED = Made("send_email", {"to": "maria@example.com", "text": "hello"})
FOUND = Made("find_email_address", {"name": "maria"})


@pytest.mark.parametrize(
    ("task", "made", "answer", "counted"),
    [
        ("sum", [Made("add", {"a": 45, "b": 38})], "83", "calls and answer"),
        ("sum", [Made("add", {"a": 45, "b": 38})] * 3, "It is 83.", "calls and answer"),
        ("sum", [Made("add", {"a": 45, "b": 38})], "It is 830 or 1.83", "calls"),
        ("sum", [Made("add", {"a": 45, "b": 37}), Made("add", {"a": 1, "b": 2})], "83", ""),
        ("sum", [], "83", ""),
        ("sum", [Made("add", {"a": 45, "b": 38})], None, "calls"),
        ("booking", [BOOKED], "The confirmation is qx415.", "calls and answer"),
        ("booking", [BOOKED, BOOKED], "QX415", ""),
        ("booking", [Made("book_room", {"room": 4, "hour": 3}), BOOKED], "QX415", ""),
        ("mail", [FOUND, MAILED], "M-318", "calls and answer"),
        ("mail", [MAILED], "M-318", ""),
        ("greeting", [], "Hello", "calls and answer"),
        ("greeting", [], "  ", "calls"),
        ("greeting", [Made("add", {"a": 1, "b": 2})], "Hello", ""),
        (
            "typed temperature",
            [Made("get_temperature", {"city": "Quito"})],
            CityTemperature("quito", 18),
            "calls and answer",
        ),
        ("typed temperature", [Made("get_temperature", {"city": "Quito"})], CityTemperature("Quito", 19), "calls"),
        (
            "typed temperature",
            [Made("get_temperature", {"city": "Quito"})],
            {"city": "Quito", "degrees": 18},
            "calls and answer",
        ),
        ("typed temperature", [Made("get_temperature", {"city": "Quito"})], "Quito 18", "calls"),
        (
            "two cities",
            [Made("get_temperature", {"city": "Oslo"}), Made("get_temperature", {"city": "Quito"})],
            "-7, 18",
            "calls and answer",
        ),
        ("two cities", [Made("get_temperature", {"city": "Oslo"})], "-7, 18", ""),
        (
            "exchange rate",
            [Made("get_exchange_rate", {"currency": "yen"}), Made("get_exchange_rate", {"currency": "JPY"})],
            "163.4 JPY",
            "calls and answer",
        ),
    ],
)
def test_calls_and_answer_count_together(task: str, made: list[Made], answer: object, counted: str) -> None:
    """A task is solved by its calls and its answer together, and no effect may be missing, wrong or doubled."""
    judged = judge(TASK[task], Ending("completed", answer), made)
    assert (judged["called"], judged["solved"]) == (counted != "", counted == "calls and answer")
    assert not judge(TASK[task], Ending("stopped", answer), made)["solved"]


def test_an_answer_in_the_notation_of_calls_is_seen() -> None:
    """Text that calls a tool is a call, and text that only names it is none."""
    assert all(is_call(text, ["add"]) for text in ['{"tool":"add"}', "add (1, 2)", "<add>1</add>"])
    assert not any(is_call(text, ["add"]) for text in ["I add both.", "address(1)", '"added"'])


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (1, 10, 0.0179, 0.4042),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),
        (0, 0, 0.0, 1.0),
    ],
)
def test_intervals_are_those_of_wilson(successes: int, trials: int, low: float, high: float) -> None:
    """The interval of a share is Wilson's, as published tables have it."""
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_figures_are_by_subject_and_api() -> None:
    """Tokens are those of all runs by each solved one, and doubled effects and endings are counted."""
    [job] = plan([SUBJECT], ["chat"], [TASK["booking"]], 1, 1)
    solved = evolve(result_of(job), **judge(job.task, Ending("completed", "QX415"), [BOOKED]), tokens=100)
    doubled = evolve(result_of(job), **judge(job.task, Ending("completed", "QX415"), [BOOKED, BOOKED]), tokens=200)
    stopped = evolve(result_of(job), **judge(job.task, Ending("stopped"), []), tokens=300, api="responses")
    cell, other = summarize([solved, doubled, stopped])
    assert (cell["runs"], cell["solved"], cell["tokens_per_solved"], cell["doubled_effects"]) == (2, 1, 300, 1)
    assert (other["api"], other["ends"], other["tokens_per_solved"]) == ("responses", {"stopped": 1}, None)


# --- the wire -------------------------------------------------------------------------------------------------------

CHAT = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]},
    {"role": "tool", "tool_call_id": "a", "content": "1"},
    {"role": "tool", "tool_call_id": "b", "content": "2"},
]
RESPONSES = [{"type": "function_call", "call_id": "a"}, {"type": "function_call_output", "call_id": "a"}]
ANTHROPIC = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
]


@pytest.mark.parametrize("body", [{"messages": CHAT}, {"input": RESPONSES}, {"messages": ANTHROPIC}])
def test_each_call_of_a_request_has_one_result(body: dict[str, list[dict[str, Any]]]) -> None:
    """A request with a call without a result, or a result without a call, is a fault that lenient servers let pass."""
    [(name, entries)] = body.items()
    assert unpaired_calls(body) == ""
    assert "no results" in unpaired_calls({name: entries[:-1]})
    assert "no call before" in unpaired_calls({name: entries[::-1]})
    assert "no call before" in unpaired_calls({name: [*entries, entries[-1]]})
    assert unpaired_calls({name: "Hello"}) == ""


def test_tokens_are_counted_alike_in_all_apis() -> None:
    """The same exchange has as many tokens in each API, also where a cache had most of the request."""
    chat = {
        "prompt_tokens": 31,
        "completion_tokens": 8,
        "total_tokens": 39,
        "prompt_tokens_details": {"cached_tokens": 30},
    }
    responses = {
        "input_tokens": 31,
        "output_tokens": 8,
        "total_tokens": 39,
        "input_tokens_details": {"cached_tokens": 30},
    }
    messages = {"cache_read_input_tokens": 30, "input_tokens": 1, "output_tokens": 8}
    assert [count_tokens(usage) for usage in (chat, responses, messages)] == [39, 39, 39]


def test_a_server_that_is_gone_is_a_protocol_error() -> None:
    """A connection that breaks is counted, and the meter ends all the same."""
    with Meter("http://127.0.0.1:1") as meter, pytest.raises(httpx.HTTPError):
        httpx.post(f"{meter.url}/v1/chat/completions", json={}, trust_env=False)
    assert "ConnectionRefusedError" in meter.errors[0]


def test_all_modes_and_libraries_have_a_name() -> None:
    """Every subject is named once."""
    assert len(set(NAMES)) == len(NAMES) == 9
