"""The shell toolkit: commands in a sandbox, on copies of the files of a folder."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agentloop import RequireApproval
from agentloop.contracts import SandboxLimits
from agentloop.errors import ConfigurationError
from agentloop.toolkits import BubblewrapSandbox, Ensemble, load_ensembles
from agentloop.toolkits.shell import as_part, shell_in
from agentloop.values import Document, Effect, Image, ToolStatus
from tests.toolkits.running import executions, run_call, run_calls
from tests.toolkits.sandboxes.available import any_sandbox

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
    """New, changed, moved and deleted files, and folders, are in the folder afterwards; links stay as they are."""
    script = (
        "cat a.txt; echo new > sub/c.txt; echo more >> a.txt; mv sub/b.txt b.txt; mkdir -p x/y; printf '#!/bin/sh\\n' > run; "
        "echo oops >&2; exit 3"
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
    assert not (root / "a.txt").stat().st_mode & 0o100
    assert (root / "link").is_symlink()
    assert "exit code 3" in execution.text


async def test_files_become_executable_only_where_the_program_allows_it(root: Path) -> None:
    """A file that was executable stays so, also when it is changed; another one is written without that, which is reported."""
    (root / "old.sh").write_text("#!/bin/sh\n")
    (root / "old.sh").chmod(0o755)
    script = "echo >> old.sh; chmod +x a.txt; echo x > new.sh; chmod +x new.sh; chmod -x sub/b.txt"
    execution = await run_call([shell_in(any_sandbox(), str(root))], "run_command", command=script)
    assert isinstance(execution.value, dict)
    assert set(execution.value["not_executable"]) == {"a.txt", "new.sh"}
    assert (list(execution.value["created"]), list(execution.value["changed"])) == (["new.sh"], ["old.sh"])
    assert "executable=True" in execution.text
    modes = {name: (root / name).stat().st_mode & 0o111 for name in ("old.sh", "a.txt", "new.sh")}
    assert modes == {"old.sh": 0o111, "a.txt": 0, "new.sh": 0}

    allowed = await run_call([shell_in(any_sandbox(), str(root), executable=True)], "run_command", command=script)
    assert (root / "new.sh").stat().st_mode & 0o100
    assert "executable" not in allowed.text


@pytest.fixture
def repository(root: Path) -> Path:
    """Return a repository of git with one commit, whose configuration names a folder of hooks in it."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for arguments in ("init -q .", "config user.email a@b", "config user.name a", "add .", "commit -qm 1"):
        run_git(root, *arguments.split())
    return root


def run_git(folder: Path, *arguments: str) -> str:
    """Run git as the owner of the folder does."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


# The texts that attacks write: HOOK is a script, SETTINGS are a configuration; both create the file OWNED.
TEXTS = {
    "HOOK": "printf '#!/bin/sh\\ntouch OWNED\\n'",
    "SETTINGS": "printf '[core]\\n\\tfsmonitor = \"touch OWNED; false\"\\n\\tworktree = .\\n'",
    "REMOTE": 'printf \'[remote "origin"]\\n\\turl = "ext::touch OWNED"\\n[protocol "ext"]\\n\\tallow = always\\n\'',
}
REPOSITORY_ATTACKS = {
    "a hook": "HOOK > .git/hooks/pre-commit; chmod +x .git/hooks/*",
    "a folder of hooks that is moved into place": "mkdir h; HOOK > h/pre-commit; chmod +x h/*; rm -rf .git/hooks; mv h .git/hooks",
    "a link to a folder of hooks": "mkdir h; HOOK > h/pre-commit; chmod +x h/*; rm -rf .git/hooks; ln -s ../h .git/hooks",
    "a hard link": "HOOK > x; chmod +x x; ln x .git/hooks/pre-commit",
    "the configured folder of hooks": "mkdir -p tools; HOOK > tools/pre-commit; chmod +x tools/*",
    "the configuration": "SETTINGS >> .git/config",
    "the configuration of a work tree": "SETTINGS > .git/config.worktree; git config extensions.worktreeConfig true",
    "an included file": "SETTINGS > shared.gitconfig",
    "another folder of git": "cp -r .git g; SETTINGS >> g/config; rm -rf .git; echo 'gitdir: g' > .git",
    "a repository below": "mkdir n; cd n; git init -q .; SETTINGS >> .git/config",
    "a folder of git beside": "cp -r .git data; SETTINGS >> data/config; mkdir n; echo 'gitdir: ../data' > n/.git",
    "a bare repository": "mkdir -p n/objects n/refs; cp .git/HEAD n; REMOTE > n/config",
    "a bare repository of two folders": "mkdir -p n c; cp -r .git/objects .git/refs c; cp .git/HEAD n; echo ../c > n/commondir; "
    "REMOTE > c/config",
    "a module": "mkdir -p .git/modules/m n; cp -r .git/HEAD .git/objects .git/refs .git/modules/m; SETTINGS > .git/modules/m/config; "
    "echo 'gitdir: ../.git/modules/m' > n/.git",
    "a work tree": "git worktree add -q n; SETTINGS >> .git/config",
    "a rebase": "cd .git; mkdir rebase-merge; cd rebase-merge; git rev-parse HEAD > onto; cp onto orig-head; touch interactive done; "
    "echo 'exec touch OWNED' > git-rebase-todo; echo refs/heads/master > head-name; echo 1 > msgnum; echo 1 > end",
}


@pytest.mark.parametrize("attack", REPOSITORY_ATTACKS)
async def test_no_command_of_git_runs_what_a_command_in_the_sandbox_has_left(repository: Path, attack: str) -> None:
    """Whatever an approved command has written, the owner's next commands of git run nothing of it."""
    if "configured" in attack:
        run_git(repository, "config", "core.hooksPath", "tools")
    if "included" in attack:
        run_git(repository, "config", "include.path", "../shared.gitconfig")
    owned, command = repository.parent / "owned", REPOSITORY_ATTACKS[attack]
    for name, text in TEXTS.items():
        command = command.replace(name, text.replace("OWNED", str(owned)))
    tools = shell_in(any_sandbox(), str(repository), executable=True)
    execution = await run_call([tools], "run_command", command=command.replace("OWNED", str(owned)))
    assert execution.succeeded
    for folder in (repository, repository / "n"):
        if folder.is_dir():
            for line in ("status", "fetch", "add -A", "commit -qm 2", "rebase --continue", "checkout -q -b two"):
                run_git(folder, *line.split())
    assert not owned.exists(), execution.text


async def test_git_works_in_the_sandbox(repository: Path) -> None:
    """A commit that a command makes is one in the folder; its configuration is the owner's."""
    environment = "GIT_AUTHOR_NAME=b GIT_AUTHOR_EMAIL=b@c GIT_COMMITTER_NAME=b GIT_COMMITTER_EMAIL=b@c"
    script = f"echo more >> a.txt; {environment} git commit -qam second && git tag v1 && git checkout -q -b other"
    execution = await run_call([shell_in(any_sandbox(), str(repository))], "run_command", command=script)
    assert isinstance(execution.value, dict)
    assert execution.value["exit_code"] == 0, execution.text
    assert not execution.value["not_written"]
    assert run_git(repository, "log", "--format=%an %s", "other") == "b second\na 1\n"
    assert (
        run_git(repository, "status", "--porcelain") == "?? link\n"
        or run_git(repository, "status", "--porcelain") == ""
    )
    assert run_git(repository, "fsck", "--strict") == ""


async def test_protected_paths_are_reported_and_all_else_is_written(tools: Ensemble, root: Path) -> None:
    """The result names each path that was left as it was, why, and how the program can allow it."""
    (root / ".vscode").mkdir()
    (root / ".vscode" / "settings.json").write_text("{}")
    script = "rm -r .vscode; mkdir .husky; echo x > .husky/pre-commit; echo x > conftest.py; echo x > z.txt"
    execution = await run_call([tools], "run_command", command=script)
    value = execution.value
    assert isinstance(value, dict)
    assert list(value["created"]) == ["z.txt"]
    assert list(value["deleted"]) == []
    assert {line.partition(":")[0] for line in value["not_written"]} == {
        ".vscode/settings.json",
        ".husky/pre-commit",
        "conftest.py",
    }
    assert (
        "only the program that runs the agent can allow that, with: may_write=['.vscode/settings.json', "
        in execution.text
    )
    assert (root / ".vscode" / "settings.json").read_text() == "{}"
    assert not (root / "conftest.py").exists()


async def test_what_was_moved_to_a_protected_path_is_not_lost(tools: Ensemble, root: Path) -> None:
    """A file whose new place is not written stays at its old one; the result says so."""
    execution = await run_call([tools], "run_command", command="mkdir .idea; mv sub .idea/sub; mv a.txt b.txt")
    assert (root / "sub" / "b.txt").read_text() == "beta\n"
    assert not (root / "a.txt").exists()
    assert "sub/b.txt: it was moved to .idea/sub/b.txt, which is not written" in execution.text


async def test_a_program_allows_protected_paths(root: Path) -> None:
    """What `may_write` names is written and deleted."""
    (root / ".envrc").write_text("old")
    tools = shell_in(any_sandbox(), str(root), may_write=[".git/hooks/*", ".envrc"], protected=["sub"])
    script = "mkdir -p .git/hooks; echo x > .git/hooks/pre-commit; echo x > .git/config; rm .envrc; echo x > sub/b.txt"
    execution = await run_call([tools], "run_command", command=script)
    assert (root / ".git" / "hooks" / "pre-commit").exists()
    assert not (root / ".git" / "config").exists()
    assert not (root / ".envrc").exists()
    assert (root / "sub" / "b.txt").read_text() == "beta\n"
    assert "may_write=['.git/config']" in execution.text


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


@pytest.mark.parametrize("network", [False, True])
def test_a_shell_with_a_network_says_so(root: Path, *, network: bool) -> None:
    """Data can leave by its commands, and the model knows that there is a network."""
    (tool,) = shell_in(any_sandbox(), str(root), network=network).tools
    assert tool.egress is network
    assert ("It has no network" in tool.description, "It has a network" in tool.description) == (not network, network)


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
        f'[ensembles.shell]\nuse = "agentloop.toolkits.shell:shell"\noptions = {{ folder = "{root}", max_seconds = 5 }}\n'
    )
    assert [tool.name for tool in load_ensembles(file)[0].offered] == ["run_command"]


@pytest.mark.parametrize("cut", range(0, len(PNG), 7))
def test_a_damaged_image_is_no_part(cut: int) -> None:
    """An image that a provider would refuse is not shown, since it would be refused in every later request too."""
    assert as_part("plot.png", PNG[:cut]) is None
