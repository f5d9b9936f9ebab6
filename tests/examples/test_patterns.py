"""The programs in `examples/patterns` run, are short, and print what they promise."""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "patterns"
DIVISION_BY_ZERO = "division by zero" if sys.version_info >= (3, 14) else "float division by zero"
EXPECTED = {
    "adapter_without_loop": "structured: 0 tools in the API",
    "async_httpx": "Lisbon succeeded {\"degrees\":24}\nAtlantis failed HTTPStatusError: Client error '404 Not Found'",
    "audit": '"tool": "transfer", "outcome": "blocked"',
    "caching": "from the cache: 1/0\nfrom the cache: 1/1",
    "calculator": f"succeeded 42.0\nfailed ZeroDivisionError: {DIVISION_BY_ZERO}\nrejected InvalidArguments",
    "chaining": 'step 2: orders{\'customer\': 17} -> ["lamp","rug"]',
    "circuit_breaker": "CircuitHalfOpened\n  asking the service about Lisbon\n  CircuitClosed",
    "custom_driver": "words: 5, 3",
    "ensembles_from_toml": "not run again: describe_numbers\n[7.0, 7.0]",
    "injected_context": "[('order-1/1/0', 'Ada', 'lamp')]",
    "json_mode": "refused: the arguments do not fit the tool's parameters: at $: 'nights' is a required property\nran: 12 for 2 nights",
    "move_conversation": '{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]}',
    "multi_step_tool": 'called by the model: {"lamp":20.0,"sum":20.0}',
    "parallel_calls": "together with 2 others\nAda succeeded 20.0\nBob succeeded 18.5\nCleo failed KeyError: 'Cleo'",
    "permission": "editor: delete_file succeeded: old.txt is gone\neditor: delete_file blocked: ToolBlocked: it is needed",
    "rate_limit": "Bob succeeded sent to Bob\nCleo blocked RateLimitExceeded",
    "react_decision": "0.9: I look.\n1.0: Now I know.\nA tower with a lamp.",
    "react_text": "user: Observation: 68400000",
    "retry": "look_up after 3 attempts: succeeded",
    "routing": "technics: offered search_manuals; search_manuals was succeeded",
    "state_access": 'remember at after_tool_use, after step 1: ["lamps"] -> ["lamps","rugs"]',
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_pattern_prints_its_result(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each program runs to its end and prints what its pattern is about."""
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        logging.disable(logging.NOTSET)
    assert EXPECTED[name] in capsys.readouterr().out


def test_the_folder_lists_its_programs_which_fit_on_a_screen() -> None:
    """Its README names every program, and none has 60 lines."""
    programs = sorted(FOLDER.glob("*.py"))
    assert [path.stem for path in programs] == sorted(EXPECTED)
    page = (FOLDER / "README.md").read_text()
    assert [path.name for path in programs if f"`{path.name}`" not in page] == []
    assert {path.name: count for path in programs if (count := len(path.read_text().splitlines())) >= 60} == {}
