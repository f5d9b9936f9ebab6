"""A coding agent: it reads and edits the files of one folder, and runs the tests after its changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from agentloop import AgentLoop, Permissions, ScriptedInference, StepLimit, ToolCall, ToolContext, tool
from agentloop.interception import Rule
from agentloop.toolkits.files import files

BROKEN = "def mean(numbers):\n    return sum(numbers) / 2\n"
TEST = "from stats import mean\n\nassert mean([1, 2, 6]) == 3, mean([1, 2, 6])\nprint('passed')\n"


@tool(effect="idempotent")
def run_tests(context: ToolContext[Path]) -> str:
    """Run the tests and return what they print."""
    command = [sys.executable, "test_stats.py"]
    folder = context.dependencies
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    return (done.stdout + done.stderr)[-2000:]


TESTS = Rule(tool="edit_file", when=lambda point: str(point.arguments["path"]).startswith("test_"))
MODEL = ScriptedInference(
    ["I look first.", ToolCall("1", "read_file", '{"path": "stats.py"}'), ToolCall("2", "run_tests")],
    ToolCall("3", "edit_file", '{"path": "stats.py", "old": "/ 2", "new": "/ len(numbers)"}'),
    [ToolCall("4", "run_tests"), ToolCall("5", "edit_file", '{"path": "test_stats.py", "old": "3", "new": "4"}')],
    "The mean was divided by 2. Now it is divided by the number of values, and the test passes.",
)


def fix(folder: Path) -> None:
    loop = AgentLoop.for_model(
        MODEL,
        tools=[files(str(folder)), run_tests],
        interceptors=[Permissions(deny=[TESTS]), StepLimit(20)],
        system_prompt="You repair the code in a folder. Tests are right; never change them.",
    )
    state = loop.execute_sync("The test fails. Repair the code.", dependencies=folder)
    for step in state.steps:
        for execution in step.executions:
            print(f"{execution.name}: {execution.status}: {execution.text.strip().splitlines()[-1]}")
    print(state.final_text)


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "stats.py").write_text(BROKEN)
        (folder / "test_stats.py").write_text(TEST)
        fix(folder)
