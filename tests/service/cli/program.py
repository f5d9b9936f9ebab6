"""A program of a user, whose executions are recorded."""

from __future__ import annotations

from pathlib import Path

from tests.loaded import LoadedProcess

APP = '''
import os
import signal
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.interception import RequireApproval
from agentloop.durable import SqliteJournal
from agentloop.values import InferenceResponse

HERE = Path(__file__).parent


@tool(effect="pure")
def look(x: int) -> int:
    """Look."""
    return x * 2


@tool
def pay(x: int) -> str:
    """Pay."""
    with (HERE / "ledger").open("a") as ledger:
        ledger.write(f"{x}\\n")
    if (HERE / "die").exists():
        (HERE / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


CALLS = [ToolCall("1", "look", '{"x": 1}'), ToolCall("2", "pay", '{"x": 2}')]


def line(request):
    """Respond to the conversation as a model does."""
    if any(message.exchanges for message in request.messages):
        return "done\\nreally"
    return InferenceResponse(tuple(CALLS))


script = ScriptedInference(line, line, line)
plain = AgentLoop.for_model(script, tools=[look, pay])
loop = AgentLoop.for_model(script, tools=[look, pay], journal=SqliteJournal(HERE / "runs.db"))
child = AgentLoop.for_model(ScriptedInference(CALLS[0], "seen"), tools=[look])
PARENT = ScriptedInference(ToolCall("1", "helper", '{"task": "look"}'), "it says so")
parent = AgentLoop.for_model(PARENT, tools=[child.as_tool("helper", "Helps.")], journal=loop.journal)
broken = AgentLoop.for_model(ScriptedInference(ValueError("boom")), journal=loop.journal)
not_a_loop = 7


def waiting():
    return loop.with_interceptors(RequireApproval())


def failing_to_make():
    raise RuntimeError("no way")


if __name__ == "__main__":
    import sys

    module = sys.modules["__main__"]
    selected = getattr(module, sys.argv[1])
    selected = selected() if callable(selected) else selected
    selected.execute_sync(sys.argv[2], execution_id=sys.argv[3])
'''


class Program:
    """The program in a folder, with its journal and the ledger of its effects."""

    def __init__(self, folder: Path, loaded: LoadedProcess) -> None:
        self.folder = folder
        self._loaded = loaded
        self.file = str(folder / "app.py")
        self.journal = str(folder / "runs.db")
        Path(self.file).write_text(APP, encoding="utf-8")

    def run(self, name: str, question: str, execution_id: str, *, is_killed: bool = False) -> None:
        if is_killed:
            (self.folder / "die").touch()
        arguments = [self.file, name, question, execution_id]
        code = f"import runpy, sys; sys.argv = {arguments!r}; runpy.run_path({self.file!r}, run_name='__main__')"
        ended = self._loaded.run(code, self.folder)
        assert ended.code == (-9 if is_killed else 0), ended.err

    @property
    def paid(self) -> list[str]:
        return (self.folder / "ledger").read_text().split()
