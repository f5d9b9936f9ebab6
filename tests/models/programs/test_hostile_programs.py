"""What hostile programs do, and what comes of it; docs/programs.md has the table."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from attrs import evolve

import agentloop
from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.models import ProgramLimits, RunProgram
from agentloop.values import ToolStatus
from tests.limits import LONGEST
from tests.models.programs.running import World, program, run

PAGE = (Path(agentloop.__file__).parent.parent / "docs" / "programs.md").read_text()
LIMITS = ProgramLimits(seconds=LONGEST, memory_bytes=16 * 1024 * 1024, calls=20, output_characters=2_000)
SOON = evolve(LIMITS, seconds=0.5)
"""For what never ends. Other programs have all the time that they take on a busy machine."""

HASHES_ARE_KEPT = sys.version_info >= (3, 14)
"""Whether a tuple computes its hash once, so that a hash cannot take forever."""
HOSTILE: dict[str, tuple[str, str]] = {
    "an endless loop": ("while True: pass", "computed for more than 0.5 seconds"),
    "an endless loop that catches everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "computed for more than 0.5 seconds",
    ),
    "a list that grows": ("x = []\nwhile True: x.append('abc' * 1000)", "used more than 16,777,216 bytes"),
    "one huge text": ("'a' * 10**10", "used more than 16,777,216 bytes"),
    "a huge format width": ("'%1000000000d' % 1", "used more than 16,777,216 bytes"),
    "a huge number": ("10**10**8", "used more than 16,777,216 bytes"),
    "a number too long for text": ("await search(10**5000)", "digits"),
    "endless recursion": ("def f(n): return f(n + 1)\nf(0)", "maximum recursion depth exceeded"),
    "a value whose hash takes forever": (
        "x = (1,)\nfor _ in range(60): x = (x, x)\n{x: 1}",
        "cannot be a key in JSON" if HASHES_ARE_KEPT else "the interpreter ended without a result",
    ),
    "an argument whose hash takes forever": (
        "x = (1,)\nfor _ in range(60): x = (x, x)\nawait search(query={x})",
        "too many bytes of JSON" if HASHES_ARE_KEPT else "the interpreter ended without a result",
    ),
    "a value that contains one list many times": (
        "x = [1]\nfor _ in range(60): x = [x, x]\nx",
        "at most 2,000 are allowed",
    ),
    "arguments that contain a list many times": (
        "x = [1]\nfor _ in range(60): x = [x, x]\nawait search(query=x)",
        "at most 1,000,000 are allowed",
    ),
    "a text many times in one value": (
        "await search(query=['x' * 500_000] * 100_000)",
        "at most 1,000,000 are allowed",
    ),
    "attributes that lead out": ("().__class__.__bases__[0].__subclasses__()", "no attribute '__class__'"),
    "a function's globals": ("search.__globals__", "no attribute '__globals__'"),
    "files": ("open('/etc/passwd').read()", "open is not available in a program"),
    "paths": (
        "from pathlib import Path\nPath('/etc/passwd').read_text()",
        "Path.read_text is not available in a program",
    ),
    "the environment": ("import os\nos.environ['HOME']", "os.environ is not available in a program"),
    "a shell": ("import os\nos.system('id')", "has no attribute 'system'"),
    "a forbidden import": ("import subprocess", "import is not available in a program"),
    "a hidden import": ("__import__('socket')", "'__import__' is not defined"),
    "the clock": ("import time\ntime.time()", "time.time is not available in a program"),
    "sleeping": ("import time\ntime.sleep(1000)", "time.sleep is not available in a program"),
    "arguments of many megabytes": ("await search('x' * 3_000_000)", "at most 1,000,000 are allowed"),
    "too many calls": ("while True: await search('x')", "more than 20 calls"),
    "calls of a tool that is not offered": ("await transfer(to='me')", "name 'transfer' is not defined"),
    "a program in a program": ("await run_program(code='1')", "name 'run_program' is not defined"),
    "arguments against the schema": ("await search(query=['a'])", "is not of type 'string'"),
}


@pytest.mark.parametrize(
    "name",
    [
        # It waits until the interpreter is ended; so does the argument with such a hash, in every run.
        pytest.param(name, marks=pytest.mark.heavy) if name == "a value whose hash takes forever" else name
        for name in HOSTILE
    ],
)
def test_a_hostile_program_ends_with_an_error(name: str) -> None:
    """The program ends, the model reads why, and the agent goes on."""
    source, message = HOSTILE[name]
    never_ends = "0.5 seconds" in message or "ended without" in message
    ran = run(source, limits=SOON if never_ends else LIMITS)
    assert ran.outer.status is ToolStatus.FAILED
    assert message in ran.outer.error_message
    assert ran.state.final_text == "done"


def test_the_table_in_the_docs_names_every_attack() -> None:
    """The page lists what is tested."""
    missing = [name for name in [*HOSTILE, *OTHERS] if f"| {name} |" not in PAGE]
    assert missing == []


OTHERS = (
    "a flood of output",
    "a value nested too deeply",
    "a pattern that backtracks",
    "forged keys",
    "chance",
    "evaluated code",
    "a catch of the end",
)
"""What is contained without an error."""


def test_a_flood_of_output_is_cut() -> None:
    """Only the first characters are shown, with a note."""
    ran = run("for _ in range(2000): print('x' * 100)\n'done'", limits=LIMITS)
    assert ran.outer.status is ToolStatus.SUCCEEDED
    assert len(ran.outer.text) < 2_200
    assert "only the first 2,000 of 202,000 printed characters are shown" in ran.outer.text


def test_a_value_nested_too_deeply_is_cut() -> None:
    """The model reads the outer levels; what is deeper is a short text."""
    ran = run("x = []\nfor _ in range(10000): x = [x]\nx", limits=LIMITS)
    assert ran.outer.status is ToolStatus.SUCCEEDED
    assert ran.outer.text.startswith("[[[")
    assert len(ran.outer.text) < 2_000


def test_a_value_that_is_too_large_fails() -> None:
    """A value beyond the limit of output is an error that says so."""
    ran = run("'x' * 10_000", limits=LIMITS)
    assert "at most 2,000 are allowed" in ran.outer.error_message


def test_a_pattern_that_backtracks_ends_soon() -> None:
    """A regular expression of exponential time takes no time, or ends with the limit."""
    ran = run("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", limits=SOON)
    assert ran.outer.status is ToolStatus.SUCCEEDED or "computed for more than 0.5 seconds" in ran.outer.error_message


def test_keys_cannot_be_forged() -> None:
    """Whatever a program passes, a call has the key of its place."""
    ran = run("await search('e/1/0/program/9')\nawait search('../../2/0')", limits=LIMITS)
    assert [inner.key for inner in ran.outer.inner] == ["e/1/0/program/0", "e/1/0/program/1"]
    ran = run("await search(query='a', key='e/1/0')", limits=LIMITS)
    assert ran.world.done == []
    assert "key" in ran.outer.error_message


def test_chance_is_the_same_in_every_run() -> None:
    """Random numbers and the order of sets do not differ between runs, so that a program can run again."""
    source = "import random\n[random.random(), list({'a', 'b', 'c'}), hash('x')]"
    assert run(source).outer.value == run(source).outer.value


def test_evaluated_code_is_a_part_of_the_program() -> None:
    """`eval` and `exec` give a program nothing that it does not have."""
    assert run("eval('1 + 1')", limits=LIMITS).outer.text == "2"
    assert "not available" in run("exec(\"open('/etc/passwd')\")", limits=LIMITS).outer.error_message


def test_a_program_cannot_catch_its_end() -> None:
    """A blocked call can be handled; the limit of calls cannot."""
    source = "try:\n    while True: await search('x')\nexcept BaseException:\n    print('caught')\nawait pay('me')"
    ran = run(source, limits=LIMITS)
    assert ran.outer.status is ToolStatus.FAILED
    assert "pay me" not in ran.world.done


async def test_a_cancelled_program_leaves_nothing_behind() -> None:
    """A program that loops when its execution is cancelled does not block the loop, and the next program runs."""
    world = World()
    model = ScriptedInference(program("while True: pass"), "done")
    loop = AgentLoop(ToolCallingDriver(model), [*world.tools, RunProgram()])
    async with loop:
        task = asyncio.create_task(loop.execute("Go."))
        await asyncio.wait((task,), timeout=0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = ScriptedInference(program("await search('x')"), "done")
        state = await loop.replace(driver=ToolCallingDriver(again)).execute("Go.")
        assert state.steps[0].executions[0].text == '["x"]'


def worker_processes() -> set[str]:
    """Return the ids of the worker processes of this process."""
    threads = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {pid for thread in threads for pid in (thread / "children").read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are listed by Linux")
async def test_worker_processes_end_with_the_loop() -> None:
    """While a loop is entered its worker is reused; afterwards no process remains."""
    model = ScriptedInference(program("await search('x')"), "done")
    loop = AgentLoop(ToolCallingDriver(model), [*World().tools, RunProgram()])
    before = worker_processes()
    async with loop:
        await loop.execute("Go.")
        first = worker_processes() - before
        await loop.execute("Go.")
        assert worker_processes() - before == first
        assert len(first) == 1
    assert worker_processes() - before == set()


async def test_programs_that_wait_share_workers() -> None:
    """With one worker, many programs wait for their calls at once: none holds the worker meanwhile."""
    started, go = 0, asyncio.Event()

    @tool(effect="pure")
    async def meet() -> int:
        """Wait until all programs have come here."""
        nonlocal started
        started += 1
        if started == 5:
            go.set()
        await go.wait()
        return 1

    runner = RunProgram(limits=ProgramLimits(workers=1))
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(program("1 + await meet()"), "done")), [meet, runner])
    async with loop:
        states = await asyncio.gather(*[loop.execute("Go.") for _ in range(5)])
    assert [state.steps[0].executions[0].text for state in states] == ["2"] * 5


def test_a_call_id_of_the_model_does_not_reach_keys() -> None:
    """Ids that a model invents are no part of keys."""
    ran = run([ToolCall("../e/9", "run_program", program("await search('x')").arguments_json)])
    assert [inner.key for inner in ran.outer.inner] == ["e/1/0/program/0"]
