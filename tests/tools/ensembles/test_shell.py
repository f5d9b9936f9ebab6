"""The shell toolkit: commands in a sandbox, on copies of the files of a folder."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path

import pytest

from agentloop import RequireApproval
from agentloop.contracts import SandboxLimits
from agentloop.errors import ConfigurationError
from agentloop.tools.ensembles import Ensemble, load_ensembles
from agentloop.tools.ensembles.shell import as_part, shell_in
from agentloop.tools.sandboxes import BubblewrapSandbox
from agentloop.values import Document, Effect, Image, ToolStatus
from tests.tools.ensembles.running import executions, run_call, run_calls
from tests.tools.sandboxes.available import any_sandbox

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with files and a link, next to a file that must not be reached."""
    (tmp_path / "secret.txt").write_text("secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("alpha\n")
    (root / "sub" / "b.txt").write_text("beta\n")
    (root / "link").symlink_to("../secret.txt")
    return root


@pytest.fixture
def tools(root: Path) -> Ensemble:
    """Return the ensemble for the folder."""
    return shell_in(any_sandbox(), str(root), limits=SandboxLimits(max_seconds=20.0, max_disk=10_000_000))


async def test_changes_of_a_command_are_those_of_the_folder(tools: Ensemble, root: Path) -> None:
    """New, changed, moved, deleted and executable files, and folders, are in the folder afterwards; links stay as they are."""
    script = (
        "cat a.txt; echo new > sub/c.txt; echo more >> a.txt; mv sub/b.txt b.txt; mkdir -p x/y; printf '#!/bin/sh\\n' > run; "
        "chmod +x run; echo oops >&2; exit 3"
    )
    execution = await run_call([tools], "run_command", command=script)
    assert execution.status is ToolStatus.SUCCEEDED, execution.error_message
    value = execution.value
    assert isinstance(value, dict)
    assert (value["exit_code"], value["stdout"], value["stderr"]) == (3, "alpha\n", "oops\n")
    assert set(value["created"]) == {"b.txt", "run", "sub/c.txt"}
    assert list(value["changed"]) == ["a.txt"]
    assert list(value["deleted"]) == ["sub/b.txt"]
    assert (root / "a.txt").read_text() == "alpha\nmore\n"
    assert (root / "x" / "y").is_dir()
    assert not (root / "sub" / "b.txt").exists()
    assert (root / "run").stat().st_mode & 0o100
    assert not (root / "a.txt").stat().st_mode & 0o100
    assert (root / "link").is_symlink()
    assert "exit code 3" in execution.text


async def test_files_stay_and_processes_end(tools: Ensemble) -> None:
    """The next command finds the files of the one before, with their times, and none of its processes."""
    state = await run_calls(
        [tools],
        ("run_command", {"command": "echo 1 > old; touch -d 2001-02-03 old; echo 2 > new; sleep 500 &"}),
        ("run_command", {"command": "[ new -nt old ] && ls; grep -l sleep /proc/[0-9]*/comm"}),
    )
    assert "new" in executions(state)[1].text
    assert "comm" not in executions(state)[1].text


async def test_a_file_can_take_the_place_of_a_folder(tools: Ensemble, root: Path) -> None:
    """A folder that became a file, and a file that became a folder, are so on the host too."""
    await run_call(
        [tools], "run_command", command="rm -r sub; echo file > sub; rm a.txt; mkdir a.txt; echo in > a.txt/in"
    )
    assert (root / "sub").read_text() == "file\n"
    assert (root / "a.txt" / "in").read_text() == "in\n"


async def test_images_and_documents_are_parts(tools: Ensemble, root: Path) -> None:
    """What is an image or a PDF by its content is shown; a text with the name of an image is not, nor one that did not change."""
    (root / "old.png").write_bytes(PNG)
    picture = base64.b64encode(PNG).decode()
    script = f"echo {picture} | base64 -d > plot.png; echo no > fake.png; printf '%%PDF-1.4 x' > paper; head -c 40 plot.png > cut.png"
    execution = await run_call([tools], "run_command", command=script)
    media = [part for part in execution.parts if not hasattr(part, "text")]
    assert [(type(part), part.name) for part in media] == [(Document, "paper"), (Image, "plot.png")]
    assert media[1].data == PNG


async def test_the_number_and_size_of_parts_are_bounded(root: Path) -> None:
    """At most so many parts and so many bytes of them are shown, whatever a command writes."""
    sandbox = any_sandbox()
    script = f"for i in 1 2 3 4 5; do echo {base64.b64encode(PNG).decode()} | base64 -d > $i.png; done"
    few = await run_call([shell_in(sandbox, str(root), max_parts=2)], "run_command", command=script)
    assert len(few.parts) == 3
    small = await run_call(
        [shell_in(sandbox, str(root), max_part_bytes=len(PNG))],
        "run_command",
        command=f"{script}; for i in *.png; do mv $i new-$i; done",
    )
    assert len(small.parts) == 2


async def test_a_command_that_takes_too_long_keeps_its_work(root: Path) -> None:
    """After the time is over the files are written back, and the text says why the command ended."""
    tools = shell_in(any_sandbox(), str(root), limits=SandboxLimits(max_seconds=1.0))
    execution = await run_call([tools], "run_command", command="echo half > half.txt; sleep 100")
    assert (root / "half.txt").read_text() == "half\n"
    assert "ended after 1 seconds" in execution.text


async def test_a_link_planted_in_the_folder_is_not_written_through(tools: Ensemble, root: Path) -> None:
    """When another program puts a link where a command has written a file, it is reported and nothing outside changes."""
    (root / "out").mkdir()
    (root / "out").rmdir()
    (root / "out").symlink_to("..")
    execution = await run_call([tools], "run_command", command="mkdir out; echo owned > out/secret.txt")
    assert "out/secret.txt: 'out' leads through a link" in execution.text
    assert (root.parent / "secret.txt").read_text() == "secret"


async def test_a_name_that_cannot_be_written_costs_no_other_file(tools: Ensemble, root: Path) -> None:
    """A command has run: a name that the folder cannot have is reported, with the output and all other files."""
    long = "\u5b57" * 84
    script = f"echo out; echo 1 > 'a\\b'; echo 2 > {long}; echo 3 > z.txt; rm a.txt"
    execution = await run_call([tools], "run_command", command=script)
    value = execution.value
    assert isinstance(value, dict)
    assert (value["stdout"], value["exit_code"]) == ("out\n", 0)
    assert list(value["created"]) == ["z.txt", long]
    assert len(value["not_written"]) == 1
    assert "'a\\\\b' is not a path here" in value["not_written"][0]
    assert (root / long).read_text() == "2\n"
    assert (root / "z.txt").read_text() == "3\n"
    assert not (root / "a.txt").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may delete any file")
async def test_a_file_that_cannot_be_deleted_is_reported(tools: Ensemble, root: Path) -> None:
    """A file that stays is not reported as deleted."""
    (root / "sub").chmod(0o555)
    execution = await run_call([tools], "run_command", command="chmod 755 sub; rm sub/b.txt")
    (root / "sub").chmod(0o755)
    assert isinstance(execution.value, dict)
    assert list(execution.value["deleted"]) == []
    assert "sub/b.txt" in execution.value["not_written"][0]


async def test_a_half_of_a_character_is_an_error_before_anything_runs(tools: Ensemble, root: Path) -> None:
    """A command that no program can be given fails with a sentence."""
    execution = await run_calls([tools], ("run_command", {"command": "echo \ud800 > x"}))
    done = executions(execution)[0]
    assert done.status is not ToolStatus.SUCCEEDED or "x" in done.text
    assert "codec" not in done.error_message


async def test_a_folder_that_is_too_large_is_refused_before_anything_runs(root: Path) -> None:
    """Neither too many bytes nor too many files are copied; the message names the limit."""
    (root / "big").write_bytes(bytes(2_000_000))
    sandbox = any_sandbox()
    large = await run_call(
        [shell_in(sandbox, str(root), limits=SandboxLimits(max_disk=1_000_000))], "run_command", command="touch ran"
    )
    many = await run_call(
        [shell_in(sandbox, str(root), limits=SandboxLimits(max_files=2))], "run_command", command="touch ran"
    )
    assert large.status is many.status is ToolStatus.FAILED
    assert "max_files" in many.error_message
    assert not (root / "ran").exists()


async def test_a_command_is_an_effect_that_waits_for_approval(tools: Ensemble, root: Path) -> None:
    """Under `RequireApproval` a command does not run before a person has approved it."""
    assert tools.offered[0].effect is Effect.EFFECT
    state = await run_calls([tools], ("run_command", {"command": "touch ran"}), interceptors=[RequireApproval()])
    assert [call.call.name for call in state.pending] == ["run_command"]
    assert not (root / "ran").exists()


async def test_without_a_sandbox_calls_fail_and_nothing_runs(root: Path) -> None:
    """A sandbox that cannot be set up makes calls fail; there is no other way for a command to run."""
    broken = BubblewrapSandbox(program="/bin/false")
    execution = await run_call([shell_in(broken, str(root))], "run_command", command=f"touch {root}/ran")
    assert execution.status is ToolStatus.FAILED
    assert not (root / "ran").exists()
    with pytest.raises(ConfigurationError, match="install bubblewrap"):
        BubblewrapSandbox(program="no-such-program")


def test_a_file_names_the_shell_with_its_limits(root: Path, tmp_path: Path) -> None:
    """A descriptor in TOML makes the ensemble; options are checked."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    file = tmp_path / "tools.toml"
    file.write_text(
        f'[ensembles.shell]\nuse = "agentloop.tools.ensembles.shell:shell"\noptions = {{ folder = "{root}", max_seconds = 5 }}\n'
    )
    assert [tool.name for tool in load_ensembles(file)[0].offered] == ["run_command"]


@pytest.mark.parametrize("cut", range(0, len(PNG), 7))
def test_a_damaged_image_is_no_part(cut: int) -> None:
    """An image that a provider would refuse is not shown, since it would be refused in every later request too."""
    assert as_part("plot.png", PNG[:cut]) is None
