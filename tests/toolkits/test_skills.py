"""Skills in the published format: what is read of them, what is shown, and what waits for approval."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentState, RequireApproval, ToolExecution
from agentloop.durable import MemoryJournal, replay
from agentloop.errors import ConfigurationError, InvalidDescriptor
from agentloop.service.cli.commands import agentloop
from agentloop.toolkits import Ensemble, ToolOverride, load_ensembles
from agentloop.toolkits.skill_files import MAX_SKILL_FILES, SkillLock, find_skills, read_skills
from agentloop.toolkits.skills import skills_in
from agentloop.values import ToolStatus, approve, from_json, to_json
from tests.toolkits.running import Call, executions, run_call, run_calls, scripted_loop
from tests.toolkits.sandboxes.available import any_sandbox

PUBLISHED = Path(__file__).with_name("published_skills")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the published skills."""
    return Path(shutil.copytree(PUBLISHED, tmp_path / "skills"))


def ensemble(folder: Path, **options: Any) -> Ensemble:
    """Return the ensemble of skills of a folder, without scripts."""
    return skills_in(None, folder, **options)


def locked(folder: Path) -> Path:
    """Return a lock file that approves the skills of a folder as they are now."""
    lock = folder.parent / "skills.lock"
    SkillLock(lock).approve(read_skills(folder))
    return lock


async def resumed(tools: Ensemble, call: Call, **options: Any) -> tuple[AgentState, AgentState]:
    """Run a call that waits for approval, and return the state that waits and the state after its approval."""
    loop = scripted_loop([tools], call, **options)
    waiting = await loop.execute("go")
    assert len(waiting.pending) == 1, [execution.text for execution in executions(waiting)]
    return waiting, await loop.resume(waiting, {pending.key: approve(pending.digest) for pending in waiting.pending})


# --- reading --------------------------------------------------------------------------------------------------------


def test_published_skills_are_read() -> None:
    """Folded and quoted texts, lists and texts of allowed tools, and keys of other programs are read as the format says."""
    found = {skill.name: skill for skill in read_skills(PUBLISHED)}
    assert list(found) == ["commit-messages", "csv-report", "unit-conversion"]
    report = found["csv-report"]
    assert report.description.startswith("Summarizes CSV files: number")
    assert "\n" not in report.description
    assert report.body.startswith("# CSV reports")
    assert report.allowed_tools == ("Bash(python:*)", "Read")
    assert report.metadata == {"author": "example-org", "version": "1.0"}
    assert report.scripts == ("scripts/summarize.py",)
    assert found["unit-conversion"].allowed_tools == ("Read",)
    assert [(key, line) for _, key, line, _ in found["unit-conversion"].warnings] == [("version", 6)]
    assert found["unit-conversion"].files["scripts/convert"].executable


@pytest.mark.parametrize(
    ("front_matter", "key", "line"),
    [
        ("description: d", "name", 1),
        ("name: x-y", "description", 1),
        ("name: X-Y\ndescription: d", "name", 2),
        ("name: -x\ndescription: d", "name", 2),
        ("name: x--y\ndescription: d", "name", 2),
        ("name: other\ndescription: d", "name", 2),
        (f"name: {'a' * 65}\ndescription: d", "name", 2),
        ("name: 7\ndescription: d", "name", 2),
        ("name: х-у\ndescription: d", "name", 2),  # noqa: RUF001  # Cyrillic letters
        (f"name: x-y\ndescription: {'d' * 1025}", "description", 3),
        ("name: x-y\ndescription: ''", "description", 3),
        ("name: x-y\ndescription: [d]", "description", 3),
        (f"name: x-y\ndescription: d\ncompatibility: {'c' * 501}", "compatibility", 4),
        ("name: x-y\ndescription: d\nmetadata: m", "metadata", 4),
        ("name: x-y\ndescription: d\nallowed-tools: 3", "allowed-tools", 4),
        ("name: x-y\ndescription: Use this: now", "", 3),
        ("name: x-y\ndescription: &a d\nlicense: *a", "", 3),
        ("name: x-y\ndescription: !!python/name:os.system", "", 3),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, front_matter: str, key: str, line: int) -> None:
    """What breaks the format, aliases and tags included, is an error that names the file, the key and the line."""
    skill = tmp_path / "x-y"
    skill.mkdir()
    (skill / "SKILL.md").write_text(f"---\n{front_matter}\n---\nBody\n")
    with pytest.raises(InvalidDescriptor) as caught:
        read_skills(tmp_path)
    assert [(mistake[1], mistake[2]) for mistake in caught.value.mistakes][:1] == [(key, line)]
    assert str(skill / "SKILL.md") in str(caught.value)


def test_all_mistakes_of_all_skills_are_reported(folder: Path) -> None:
    """One error has the mistakes of every skill, and links to skills elsewhere are mistakes."""
    (folder / "csv-report" / "SKILL.md").write_text("---\nname: csv\n---\n")
    (folder / "linked").symlink_to(folder / "commit-messages")
    with pytest.raises(InvalidDescriptor) as caught:
        read_skills(folder)
    assert {(Path(file).parent.name, key) for file, key, _, _ in caught.value.mistakes} == {
        ("csv-report", "description"),
        ("csv-report", "name"),
        ("skills", ""),
    }


def test_two_skills_of_one_name_are_a_mistake(folder: Path, tmp_path: Path) -> None:
    """Of two folders with a skill of the same name, neither silently wins."""
    other = shutil.copytree(folder / "csv-report", tmp_path / "more" / "csv-report")
    with pytest.raises(InvalidDescriptor, match="there is a skill 'csv-report'"):
        read_skills([folder, other])


def test_a_link_in_a_skill_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """A file or folder that is a link is no file of the skill, and a SKILL.md that is one is a mistake."""
    (tmp_path / "secret.md").write_text("secret")
    (folder / "csv-report" / "references" / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "csv-report" / "up").symlink_to(tmp_path)
    assert [path for path in read_skills(folder / "csv-report")[0].files if "link" in path or "up" in path] == []
    (folder / "csv-report" / "SKILL.md").unlink()
    (folder / "csv-report" / "SKILL.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(InvalidDescriptor, match="links are not followed"):
        read_skills(folder / "csv-report")


def test_what_is_read_is_bounded(folder: Path) -> None:
    """Neither a long SKILL.md nor too many files are read."""
    (folder / "csv-report" / "SKILL.md").write_text("---\nname: csv-report\ndescription: d\n---\n" + "x" * 300_000)
    for number in range(MAX_SKILL_FILES + 1):
        (folder / "commit-messages" / f"{number}").touch()
    with pytest.raises(InvalidDescriptor) as caught:
        read_skills(folder)
    assert [("characters" in message, "more than" in message) for *_, message in caught.value.mistakes] == [
        (False, True),
        (True, False),
    ]


@given(text=st.text(max_size=300))
def test_any_text_is_a_skill_or_a_mistake(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever SKILL.md says, it is read or it is a mistake."""
    skill = tmp_path_factory.mktemp("s") / "x"
    skill.mkdir()
    (skill / "SKILL.md").write_bytes(f"---\nname: x\ndescription: {text}".encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidDescriptor):
        read_skills(skill)
    (skill / "SKILL.md").write_bytes(f"---\nname: x\ndescription: {json.dumps(text)}\n---\n{text}".encode())
    found, mistakes = find_skills(skill)
    assert len(found) + bool(mistakes) == 1


def test_the_hash_covers_names_contents_and_rights(folder: Path) -> None:
    """Any change of a skill changes its hash; the time of a file does not."""
    skill = folder / "unit-conversion"

    def digest() -> str:
        return read_skills(skill)[0].digest

    digests = [digest()]
    (skill / "assets" / "factors.txt").touch()
    assert digest() == digests[0]
    (skill / "assets" / "factors.txt").write_text("foot 1\n")
    digests.append(digest())
    (skill / "assets" / "factors.txt").rename(skill / "factors.txt")
    digests.append(digest())
    (skill / "scripts" / "convert").chmod(0o644)
    digests.append(digest())
    (skill / "new").touch()
    digests.append(digest())
    assert len(set(digests)) == 5


# --- use ------------------------------------------------------------------------------------------------------------


async def test_skills_are_disclosed_step_by_step(folder: Path) -> None:
    """Names and descriptions are in a tool's description; bodies and files come when the model asks for them."""
    tools = ensemble(folder)
    listing = tools.offered[0].description
    assert "- csv-report: Summarizes CSV files" in listing
    assert "# CSV reports" not in listing
    state = await run_calls(
        [tools],
        ("load_skill", {"skill": "csv-report"}),
        ("read_skill_file", {"skill": "csv-report", "path": "references/guide.md"}),
    )
    body, guide = executions(state)
    assert body.text.startswith("# CSV reports")
    assert "- references/guide.md" in body.text
    assert guide.text.startswith("# How a report reads")
    assert [tool.name for tool in tools.offered] == ["load_skill", "read_skill_file"]


@pytest.mark.parametrize(
    "path", ["../commit-messages/SKILL.md", "/etc/passwd", "references", "references/../SKILL.md", "", "x\0y"]
)
async def test_only_files_of_the_skill_can_be_read(folder: Path, path: str) -> None:
    """No path leads out of the skill."""
    execution = await run_call([ensemble(folder)], "read_skill_file", skill="csv-report", path=path)
    assert execution.status is ToolStatus.FAILED
    assert "has no file" in execution.error_message


async def test_an_unknown_skill_gets_the_closest_name(folder: Path) -> None:
    """The error offers the name that was probably meant."""
    execution = await run_call([ensemble(folder)], "load_skill", skill="csv-reports")
    assert "did you mean 'csv-report'?" in execution.error_message


async def test_what_was_approved_is_what_is_used(folder: Path) -> None:
    """A file that changes after the skills were read is not used: not by loading, not by a script."""
    tools = ensemble(folder, lock=locked(folder))
    (folder / "commit-messages" / "SKILL.md").write_text("---\nname: commit-messages\ndescription: d\n---\nEvil.\n")
    execution = await run_call([tools], "load_skill", skill="commit-messages")
    assert "Evil" not in execution.text


@pytest.mark.unreplayed
async def test_a_changed_skill_waits_for_approval_once(folder: Path) -> None:
    """A skill whose content is not the locked one shows its name only, asks, and is in the lock file once approved."""
    lock = locked(folder)
    assert (await run_call([ensemble(folder, lock=lock)], "load_skill", skill="csv-report")).succeeded
    (folder / "csv-report" / "references" / "guide.md").write_text("Changed.")
    tools = ensemble(folder, lock=lock)
    assert "- csv-report: (not approved yet" in tools.offered[0].description
    waiting, state = await resumed(tools, ("load_skill", {"skill": "csv-report"}))
    assert "has changed since it was approved; its content is now sha256:" in waiting.pending[0].reason
    assert executions(state)[0].succeeded
    assert SkillLock(lock).read()["csv-report"] == read_skills(folder / "csv-report")[0].digest
    again = ensemble(folder, lock=lock)
    assert (
        await run_call([again], "read_skill_file", skill="csv-report", path="references/guide.md")
    ).text == "Changed."


async def test_the_question_about_a_call_names_the_content(folder: Path) -> None:
    """Also when `RequireApproval` has to be asked about the same call: who approves it approves the content."""
    call: Call = ("load_skill", {"skill": "csv-report"})
    tools = ensemble(folder, lock=folder / "none.lock")
    state = await scripted_loop([tools], call, interceptors=[RequireApproval(["*_skill"])]).execute("go")
    (pending,) = state.pending
    assert read_skills(folder / "csv-report")[0].digest in pending.reason


@pytest.mark.unreplayed
async def test_an_approval_is_bound_to_the_content(folder: Path) -> None:
    """A skill that changes between the question and its answer asks again, also in another process."""
    lock = locked(folder)
    (folder / "csv-report" / "SKILL.md").write_text("---\nname: csv-report\ndescription: d\n---\nFirst.\n")
    journal = MemoryJournal()
    call: Call = ("load_skill", {"skill": "csv-report"})
    waiting = await scripted_loop([ensemble(folder, lock=lock)], call, journal=journal).execute("go")
    decisions = {pending.key: approve(pending.digest) for pending in waiting.pending}
    (folder / "csv-report" / "SKILL.md").write_text("---\nname: csv-report\ndescription: d\n---\nSecond.\n")
    state = await scripted_loop([ensemble(folder, lock=lock)], call, journal=journal).resume(waiting, decisions)
    assert len(state.pending) == 1
    assert "Second" not in str(executions(state))
    assert SkillLock(lock).read()["csv-report"] != read_skills(folder / "csv-report")[0].digest


@pytest.mark.unreplayed
async def test_a_replay_approves_nothing(folder: Path) -> None:
    """The recorded decision is about other content than that of today, which is neither approved nor used."""
    lock = locked(folder)
    (folder / "csv-report" / "references" / "guide.md").write_text("First.")
    journal = MemoryJournal()
    call: Call = ("load_skill", {"skill": "csv-report"})
    _, state = await resumed(ensemble(folder, lock=lock), call, journal=journal)
    assert executions(state)[0].succeeded
    pinned = SkillLock(lock).read()
    (folder / "csv-report" / "references" / "guide.md").write_text("Second.")
    today = ensemble(folder, lock=lock)
    assert state.execution is not None
    await replay(journal, state.execution.id, scripted_loop([today], call))
    assert SkillLock(lock).read() == pinned
    later = await scripted_loop([today], call).execute("go")
    assert len(later.pending) == 1


async def test_tools_without_their_ensemble_use_nothing_unapproved(folder: Path) -> None:
    """The tools alone have no approvals: they use what is locked, and run no script."""
    lock = locked(folder)
    (folder / "csv-report" / "references" / "guide.md").write_text("Changed.")
    tools = skills_in(any_sandbox(), folder, lock=lock).offered
    loaded = await run_call(tools, "load_skill", skill="csv-report")
    ran = await run_call(
        tools, "run_skill_script", skill="unit-conversion", script="scripts/convert", arguments=["1", "foot"]
    )
    assert loaded.status is ran.status is ToolStatus.FAILED
    assert "pass the ensemble" in loaded.error_message
    assert "pass the ensemble" in ran.error_message


# --- scripts --------------------------------------------------------------------------------------------------------


async def test_a_script_runs_in_the_sandbox_after_its_approval(folder: Path, tmp_path: Path) -> None:
    """It sees the files of the skill and of the work folder, and what it writes stays; the skill itself does not change."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "data.csv").write_text("name,price\nlamp,3\ndesk,7\n")
    before = read_skills(folder / "csv-report")[0].digest
    tools = skills_in(any_sandbox(), folder, lock=locked(folder), work=str(work))
    arguments = {"skill": "csv-report", "script": "scripts/summarize.py", "arguments": ["data.csv"]}
    waiting, state = await resumed(tools, ("run_skill_script", arguments))
    assert not (work / "summary.txt").exists() or executions(state)
    assert "runs the script 'scripts/summarize.py'" in waiting.pending[0].reason
    ran = executions(state)[0]
    if "not found" in ran.text:
        pytest.skip("python3 is not in the sandbox")
    assert "2 rows\nname: desk to lamp\nprice: 3 to 7" in ran.text
    assert (work / "summary.txt").read_text().startswith("2 rows")
    assert sorted(path.name for path in work.iterdir()) == ["data.csv", "summary.txt"]
    assert read_skills(folder / "csv-report")[0].digest == before


async def test_every_call_of_a_script_waits_and_is_asked_about_once(folder: Path) -> None:
    """An approval is for one call; together with `RequireApproval` there is one question, not two."""
    arguments = {"skill": "unit-conversion", "script": "./scripts/convert", "arguments": ["3", "foot"]}
    call: Call = ("run_skill_script", arguments)
    tools = skills_in(any_sandbox(), folder)
    loop = scripted_loop([tools], call, call, interceptors=[RequireApproval()])
    state = await loop.execute("go")
    results: list[ToolExecution] = []
    for _ in range(2):
        state = await loop.resume(state, {pending.key: approve(pending.digest) for pending in state.pending})
        results = executions(state)
    assert [result.succeeded for result in results] == [True, True]
    assert "0.9144" in results[0].text
    assert not state.pending


async def test_a_script_leaves_folders_of_skills_in_the_work_folder_alone(folder: Path, tmp_path: Path) -> None:
    """A work folder that has skills itself, or a folder of the name that scripts run in, keeps all of its files."""
    work = tmp_path / "project"
    kept = [work / ".skills" / "mine" / "SKILL.md", work / ".agentloop-skills" / "unit-conversion" / "notes.txt"]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    arguments = {"skill": "unit-conversion", "script": "scripts/convert", "arguments": ["3", "foot"]}
    _, state = await resumed(skills_in(any_sandbox(), folder, work=str(work)), ("run_skill_script", arguments))
    assert "0.9144" in executions(state)[0].text
    assert [path.read_text() for path in kept] == ["mine", "mine"]


@pytest.mark.unreplayed
async def test_an_approval_without_a_journal_is_bound_to_the_content(folder: Path) -> None:
    """A state that another process resumes asks again when the skill is another one by then."""
    lock = locked(folder)
    (folder / "csv-report" / "SKILL.md").write_text("---\nname: csv-report\ndescription: d\n---\nFirst.\n")
    call: Call = ("load_skill", {"skill": "csv-report"})
    waiting = await scripted_loop([ensemble(folder, lock=lock)], call).execute("go")
    state = from_json(to_json(waiting), AgentState)
    (folder / "csv-report" / "SKILL.md").write_text("---\nname: csv-report\ndescription: d\n---\nSecond.\n")
    decisions = {pending.key: approve(pending.digest) for pending in state.pending}
    state = await scripted_loop([ensemble(folder, lock=lock)], call).resume(state, decisions)
    assert len(state.pending) == 1
    assert "Second" not in str(executions(state))


@pytest.mark.parametrize(
    "script", ["SKILL.md", "assets/factors.txt", "../csv-report/scripts/summarize.py", "/bin/sh", "scripts"]
)
async def test_only_scripts_of_the_skill_run(folder: Path, script: str) -> None:
    """What is no script, or no file of the skill, does not run, even when approved."""
    tools = skills_in(any_sandbox(), folder)
    _, state = await resumed(tools, ("run_skill_script", {"skill": "unit-conversion", "script": script}))
    assert executions(state)[0].status is ToolStatus.FAILED


# --- configuration --------------------------------------------------------------------------------------------------


def test_a_file_names_skills(folder: Path, tmp_path: Path) -> None:
    """A descriptor in TOML makes the ensemble."""
    file = tmp_path / "tools.toml"
    file.write_text(f'[ensembles.knowledge]\nuse = "skills"\noptions = {{ folders = ["{folder}"] }}\n')
    assert [tool.name for tool in load_ensembles(file)[0].offered] == ["load_skill", "read_skill_file"]


async def test_an_ensemble_of_another_name_asks_too(folder: Path) -> None:
    """Approval does not depend on the names of the ensemble and of its tools."""
    tools = evolve(skills_in(any_sandbox(), folder), name="knowledge").with_override(
        "run_skill_script", ToolOverride(name="execute")
    )
    _, state = await resumed(
        tools, ("execute", {"skill": "unit-conversion", "script": "scripts/convert", "arguments": ["1", "foot"]})
    )
    assert "0.3048" in executions(state)[0].text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 2, "skills": {}}', '{"version": 1, "skills": {"a": "md5:1"}}', "[" * 10_000]
)
def test_a_damaged_lock_file_is_an_error(folder: Path, text: str) -> None:
    """It approves nothing, and is not overwritten."""
    lock = folder.parent / "skills.lock"
    lock.write_text(text)
    with pytest.raises(ConfigurationError, match=r"skills\.lock is not a lock file"):
        ensemble(folder, lock=lock)
    assert lock.read_text() == text


def test_the_command_line_lists_checks_and_locks(folder: Path) -> None:
    """`skills list`, `check` and `lock` show names, mistakes with lines, and what has changed."""
    lock = folder.parent / "skills.lock"

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(agentloop, ["skills", *arguments, str(folder)])
        return done.exit_code, done.output

    assert run("check")[0] == 0
    assert "version: warning: is not a key" in run("check")[1]
    assert run("check", "--lock", str(lock))[0] == 1
    assert run("lock", "--lock", str(lock))[0] == 0
    assert run("check", "--lock", str(lock))[0] == 0
    (folder / "csv-report" / "references" / "guide.md").write_text("Changed.")
    code, output = run("check", "--lock", str(lock))
    assert (code, "csv-report: changed" in output) == (1, True)
    code, output = run("list", "--json", "--lock", str(lock))
    assert [skill["state"] for skill in json.loads(output)] == ["approved", "changed", "approved"]
    assert "unit-conversion" in run("list")[1]
    (folder / "csv-report" / "SKILL.md").write_text("---\nname: csv-report\n---\n")
    code, output = run("lock", "--lock", str(lock))
    assert (code, "line 1: description: is missing" in output.replace("\n", " ")) == (1, True)
    assert CliRunner().invoke(agentloop, ["skills", "list", "/no/such"]).exit_code == 2
