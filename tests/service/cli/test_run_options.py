"""The options of `agentloop run` that choose a driver and a mode, against a model that knows every mode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentloop.service.cli.agent_options import MODES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.cli.conftest import CommandLine, ModelServer

# The model of the shop writes no programs.
DRIVERS_AND_MODES = [(driver, mode) for driver, modes in MODES.items() for mode in modes if mode != "program"]


@pytest.mark.parametrize(("driver", "mode"), DRIVERS_AND_MODES)
@pytest.mark.parametrize("more", [(), ("--stream",)])
def test_a_run_completes_in_every_driver_and_mode(
    command_line: CommandLine, shop_run: list[str], driver: str, mode: str, more: tuple[str, ...]
) -> None:
    """Whatever the driver and the mode, the calls run and the answer is written once to stdout."""
    result = command_line(*shop_run, "--driver", driver, "--mode", mode, *more)
    assert result.code == 0
    assert result.out.startswith("Dear Ada Lovelace,\n")
    assert result.out.count("Dear Ada Lovelace,") == 1
    assert "ticket 1 is open" in result.out
    assert "voucher 1 over 25.00 is yours" in result.out
    assert "9 tool calls (7 succeeded, 2 failed)" in result.err


@pytest.mark.parametrize(("driver", "mode"), DRIVERS_AND_MODES)
def test_a_stream_shows_the_text_and_then_the_answer(
    command_line: CommandLine, shop_run: list[str], driver: str, mode: str
) -> None:
    """With --stream, stderr shows the answer before the line that ends it; stdout contains it once."""
    result = command_line(*shop_run, "--driver", driver, "--mode", mode, "--stream")
    shown = result.err.index("  ·  Dear Ada Lovelace,")
    assert "You will hear from us" in result.err[shown : result.err.index("  ·  model", shown)]


def test_a_request_follows_the_mode(command_line: CommandLine, server: ModelServer) -> None:
    """--mode and --stream decide what the provider is sent."""
    server.says(json.dumps({"next": [{"answer": "4"}]}))
    base = ("run", "2+2?", "--model", "ollama:m", "--base-url", server.base_url)
    assert command_line(*base, "--mode", "parsed").out == '{"next": [{"answer": "4"}]}\n'
    command_line(*base, "--stream")
    assert [request.get("stream", False) for request in server.requests] == [False, True]


@pytest.mark.parametrize("place", ["--tools", "--agent"])
def test_a_person_allows_protected_paths(
    command_line: CommandLine, server: ModelServer, tmp_path: Path, place: str
) -> None:
    """Tools of a file write what `--may-write` names, and nothing else that is protected; the line of a call says why."""
    file, root = tmp_path / "described.toml", tmp_path / "project"
    root.mkdir()
    table = f'[ensembles.files]\nuse = "files"\noptions = {{ root = "{root}" }}\n'
    outer = 'model = "ollama:m"\nensembles = ["tools.toml"]\n'
    (tmp_path / "tools.toml").write_text(table)
    file.write_text(table if place == "--tools" else outer)
    for names in (["conftest.py", ".envrc"], ["conftest.py"]):
        server.calls(*[("write_file", {"path": name, "text": "x"}) for name in names])
        server.says("Done.")
    base = ("run", "Go!", "--model", "ollama:m", "--base-url", server.base_url, place, str(file), "--approve", "all")
    result = command_line(*base, "--may-write", "conftest.py")
    assert result.code == 0, result.err
    assert (root / "conftest.py").exists()
    assert not (root / ".envrc").exists()
    assert "'.envrc' is protected, unless" in result.err
    (root / "conftest.py").unlink()
    command_line(*base)
    assert not (root / "conftest.py").exists()


def test_a_model_may_call_tools_by_programs(command_line: CommandLine, server: ModelServer, tmp_path: Path) -> None:
    """With --mode program, the tools of --tools are the functions of its programs."""
    path = tmp_path / "sums.py"
    path.write_text(
        "from agentloop import tool\n\n@tool(effect='pure')\ndef add(a: int, b: int) -> int:\n"
        '    """Add two numbers."""\n    return a + b\n'
    )
    server.calls(("run_program", {"code": "print(await add(a=await add(a=1, b=2), b=3))"}))
    server.says("It is 6.")
    base = ("run", "1+2+3?", "--model", "ollama:qwen3", "--base-url", server.base_url)
    result = command_line(*base, "--mode", "program", "--tools", str(path), "--approve", "all")
    assert (result.code, result.out) == (0, "It is 6.\n")
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["run_program"]
    assert server.requests[1]["messages"][-1]["content"] == "6"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "demo", "--mode", "json"], "--driver tools has no mode 'json', only auto, native"),
        (["--model", "demo", "--mode", "json"], "'json' is a mode of --driver react"),
        (["--model", "demo", "--driver", "react", "--mode", "parsed"], "'parsed' is a mode of --driver tools"),
        (["--model", "demo", "--driver", "react", "--mode", "native"], "only auto, json, text"),
        (["--model", "demo", "--mode", "telepathy"], "'telepathy' is not one of 'auto'"),
        (["--model", "demo", "--driver", "car"], "'car' is not one of 'tools', 'react'"),
        (["--model", "demo", "--stream", "--quiet"], "omit one of them"),
        (["--model", "demo", "--base-url", "http://localhost"], "has no address"),
        (["--model", "demo", "--max-tokens", "0"], "Invalid value for '--max-tokens'"),
        (["--model", "demo", "--max-cost", "0"], "Invalid value for '--max-cost'"),
        (["", "--model", "demo"], "the question is empty"),
        (["hi", "--agent", "a.md", "--system", "x"], "the file of --agent decides about --system; omit it"),
        (
            ["hi", "--agent", "a.md", "--driver", "react", "--mode", "text"],
            "decides about --driver and --mode; omit it",
        ),
        (["--model", "demo", "--journal", "absent/runs.db"], "--journal absent/runs.db: there is no folder absent"),
        (["--model", "demo", "--tools", "absent.py"], "there is no file"),
    ],
)
def test_contradicting_options_exit_with_2(command_line: CommandLine, arguments: list[str], message: str) -> None:
    """Options that contradict each other are a usage error whose message says what to change."""
    result = command_line("run", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
