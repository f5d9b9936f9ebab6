"""Commands in a folder of a stranger: it has a file for each name that can be imported, started or looked for."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from attrs import frozen

from agentloop.service.cli.commands import agentloop
from agentloop.service.cli.folder_modules import PACKAGES
from tests.limits import LONGEST
from tests.service.cli.conftest import ModelServer

AGENTLOOP = str(Path(sys.executable).with_name("agentloop"))

# --- the traps ------------------------------------------------------------------------------------------------------

TRAP = """
import posix  # which is built in: what is imported first of all cannot open a file otherwise

file = posix.open({marker!r}, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND)
posix.write(file, b"{name}\\n")
posix.close(file)
"""
LOOKED_FOR_BY_LIBRARIES = [
    "brotli",
    "brotlicffi",
    "bs4",
    "colorama",
    "cryptography",
    "cssselect",
    "curio",
    "dotenv",
    "email_validator",
    "evil",
    "gnureadline",
    "gunicorn",
    "h2",
    "html5lib",
    "itsdangerous",
    "jinja2",
    "multipart",
    "numpy",
    "pandas",
    "python_multipart",
    "simplejson",
    "sitecustomize",
    "socksio",
    "trio",
    "ujson",
    "usercustomize",
    "watchfiles",
    "websockets",
    "wsproto",
    "zstandard",
]
STANDARD = {name for name in sys.stdlib_module_names if name.isidentifier()}
INSTALLED = {name for name in packages_distributions() if name.isidentifier()} | PACKAGES | {*LOOKED_FOR_BY_LIBRARIES}
LOOSE = 'approve = "all"\nmodel = "openai:evil"\nallow = ["evil"]\nbase_url = "http://127.0.0.1:9"\n'
LOOKED_FOR: Mapping[str, str] = {
    **dict.fromkeys(
        [
            "config.toml",
            "agentloop.toml",
            ".agentloop.toml",
            "agentloop/config.toml",
            ".agentloop/config.toml",
            ".config/agentloop/config.toml",
        ],
        LOOSE,
    ),
    "pyproject.toml": f"[tool.agentloop]\n{LOOSE}",
    ".env": "AGENTLOOP_MODEL=openai:evil\nOPENAI_BASE_URL=http://127.0.0.1:9\nPYTHONPATH=.\n",
    "dbos-config.yaml": "name: evil\nlanguage: python\nruntimeConfig:\n  start: [python evil.py]\n",
    ".mcp.json": '{"mcpServers": {"evil": {"command": "./evil"}}}',
    "mcp.json": '{"mcpServers": {"evil": {"command": "./evil"}}}',
    "skills.lock": '{"version": 1, "skills": {}}',
    ".netrc": "machine 127.0.0.1 login evil password evil\n",
    "pip.conf": "[global]\nindex-url = http://127.0.0.1:9\n",
    "setup.cfg": "[options.entry_points]\nagentloop = evil = evil:evil\n",
    "evil.pth": "import evil\n",
    "evil-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
    "evil-1.0.dist-info/entry_points.txt": "".join(
        f"[{group}]\nevil = evil:evil\n"
        for group in (
            "agentloop.providers",
            "console_scripts",
            "pydantic",
            "opentelemetry_context",
            "opentelemetry_propagator",
            "pytest11",
        )
    ),
}
"""What commands, and libraries that they use, read in other folders or could read in this one."""

# --- what a person names --------------------------------------------------------------------------------------------

NAMED: Mapping[str, str] = {
    "person_helper.py": "ANSWER = 'Hi.'\n",
    "person_tools.py": """
from agentloop import tool

@tool(effect="pure")
def greet(name: str) -> str:
    "Return the greeting that a person with this name is met with."
    import person_helper
    return person_helper.ANSWER
""",
    "person_app.py": """
from agentloop import AgentLoop, ScriptedInference
from person_helper import ANSWER
from person_tools import greet

loop = AgentLoop.for_model(ScriptedInference(ANSWER), tools=[greet])
""",
    "person.toml": """
[ensembles.web]
use = "http"
options = { hosts = ["example.com"] }
[ensembles.notes]
use = "files"
options = { root = "." }
[ensembles.mine]
use = "person_tools:greet"
""",
    "person.md": '---\nmodel: ollama:x\nensembles: ["person.toml"]\n---\nYou help.\n',
    "servers.json": json.dumps(
        {"mcpServers": {"own": {"command": AGENTLOOP, "args": ["mcp", "serve", "person_tools.py"]}}}
    ),
    "skills/greet/SKILL.md": "---\nname: greet\ndescription: How to greet a person.\n---\nSay hello.\n",
}


@frozen
class Use:
    """The arguments of a command after its name, its exit code, and the text with which one that ends by a signal is ready."""

    arguments: str
    code: int = 0
    ready: str = ""

    def words(self, url: str) -> list[str]:
        """Return the arguments, with the address of a model."""
        return [url if word == "URL" else word for word in shlex.split(self.arguments)]


USES: Mapping[str, Sequence[Use]] = {
    "agents check": [Use("person.md --allow person_tools")],
    "chat": [Use("-m ollama:x --base-url URL --tools person_tools.py --tools person.toml:web --allow person_tools")],
    "cluster limit": [Use("default --pause")],
    "cluster schedule": [Use("nightly '0 0 * * *' person_app:loop Hi.")],
    "cluster schedules": [Use("")],
    "cluster status": [Use("")],
    "cluster unschedule": [Use("none", 2)],
    "config path": [Use("")],
    "config set": [Use("max_steps 7")],
    "config show": [Use("")],
    "config unset": [Use("max_steps", 2)],
    "demo": [Use("--yes --journal demo.db")],
    "mcp login": [Use("http://127.0.0.1:9/mcp", 1)],
    "mcp logout": [Use("http://127.0.0.1:9/mcp")],
    "mcp serve": [
        Use("person_tools.py person.toml:web --agent person_app:loop --mcp servers.json --allow person_tools")
    ],
    "memory export": [Use("memory.db --user ada")],
    "memory forget": [Use("memory.db --user ada --all")],
    "memory list": [Use("memory.db --user ada")],
    "models": [Use("evil:x", 2), Use("ollama --list --base-url URL", 1), Use("")],
    "run": [
        Use("Hi. -m ollama:x --base-url URL --mcp servers.json --tools person_tools.py --journal runs.db"),
        Use("Hi. -m demo --approve none"),
        Use("Hi. --agent person.md -m ollama:x --base-url URL --allow person_tools"),
    ],
    "runs delete": [Use("recorded --yes")],
    "runs export": [Use("recorded --pytest --loop person_app:loop")],
    "runs fork": [Use("recorded person_app:loop --step 0")],
    "runs list": [Use("")],
    "runs purge": [Use("--older-than 1d --yes")],
    "runs recover": [Use("--all person_app:loop")],
    "runs replay": [Use("recorded person_app:loop")],
    "runs resume": [Use("recorded person_app:loop")],
    "runs send": [Use("recorded Hi.", 2)],
    "runs show": [Use("recorded")],
    "runs stop": [Use("recorded", 1)],
    "runs verify": [Use("recorded")],
    "serve": [Use("person_app:loop --port 0", ready="serving at")],
    "skills check": [Use("skills")],
    "skills list": [Use("skills --lock skills.lock")],
    "skills lock": [Use("skills")],
    "submit": [Use("person_app:loop Hi.")],
    "tools check": [Use("person.toml --allow person_tools"), Use("person_tools.py"), Use("person_tools")],
    "tools list": [Use("person.toml --allow person_tools --mcp servers.json")],
    "trace serve": [Use("--port 0 --no-open", ready="http://")],
    "trace view": [Use("recorded --no-open")],
    "worker": [Use("person_app:loop", ready="runs person_app:loop")],
}


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands of the command line, with their names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join([*path, name]), command


COMMANDS = dict(commands(agentloop))


def uses(name: str) -> Sequence[Use]:
    """Return how a command is used; one that is not in the table gets a file for each argument, and may refuse it."""
    arguments = [p for p in COMMANDS[name].params if isinstance(p, click.Argument) and p.required]
    return USES.get(name) or [Use(" ".join("person_tools.py" for _ in arguments), code=-1)]


ALL_USES = [(name, use) for name in COMMANDS for use in uses(name)]
FIRST_USES = [(name, uses(name)[0]) for name in COMMANDS]

# --- the folder -----------------------------------------------------------------------------------------------------


@frozen
class Folder:
    """The folder in which commands run.

    Attributes:
        path: the folder.
        marker: the file to which each trap that runs adds its name.
        template: the folder with the files that commands change.
    """

    path: Path
    marker: Path
    template: Path

    def renew(self) -> None:
        """Remove what an earlier command has left."""
        self.marker.unlink(missing_ok=True)
        for file in [*self.path.glob("*.db*"), self.path / "skills.lock"]:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        shutil.copytree(self.template, self.path, dirs_exist_ok=True)

    @property
    def sprung(self) -> set[str]:
        """The names of the traps that have run."""
        return {*self.marker.read_text().split()} if self.marker.exists() else set()

    def lay(self, file: str, text: str) -> None:
        """Write a file."""
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def lay_modules(self, names: set[str], file: str, effect: str) -> None:
        """Write a module for each name."""
        for name in names:
            self.lay(file.format(name), TRAP.format(marker=str(self.marker), name=name) + effect)

    def lay_programs(self) -> None:
        """Make a program of each name that a program of this machine has, in the folder and in one below."""
        trap = self.path / "trap-program"
        trap.write_text(f"#!/bin/sh\necho program:$0 >> {self.marker}\nexit 1\n")
        trap.chmod(0o755)
        entries = filter(Path.is_dir, map(Path, os.environ["PATH"].split(os.pathsep)))
        names = {file.name for entry in entries for file in entry.iterdir()} | {
            "bwrap",
            "docker",
            "podman",
            "npx",
            "monty",
        }
        for folder in (self.path, self.path / "bin"):
            folder.mkdir(exist_ok=True)
            for name in names:
                if not (folder / name).exists():
                    (folder / name).symlink_to(trap)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a command: relative entries of PATH come first."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            "PATH": os.pathsep.join([".", "", "bin", os.environ["PATH"]]),
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a journal, a memory and a lock file, as commands expect them."""
    folder = tmp_path_factory.mktemp("template")
    for name in ("person_helper.py", "person_tools.py", "person_app.py"):
        (folder / name).write_text(NAMED[name])
    program = (
        "from person_app import loop; from agentloop.durable import SqliteJournal; from pathlib import Path; import datetime;"
        "from agentloop.toolkits.memory import MemoryFile, MemoryScope;"
        "loop.replace(journal=SqliteJournal(Path('agentloop.db'))).execute_sync('Hi.', execution_id='recorded');"
        "MemoryFile(Path('memory.db')).remember(MemoryScope(user='ada'), 'x', written_at=datetime.datetime.now(datetime.UTC))"
    )
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, timeout=LONGEST)
    for name in ("person_helper.py", "person_tools.py", "person_app.py"):
        (folder / name).unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    (folder / "skills.lock").write_text(LOOKED_FOR["skills.lock"])
    return folder


def _folder(path: Path, template: Path) -> Folder:
    folder = Folder(path / "folder", path / "sprung", template)
    for file, text in {**LOOKED_FOR, **NAMED}.items():
        folder.lay(file, text)
    folder.lay("conftest.py", TRAP.format(marker=str(folder.marker), name="conftest"))
    return folder


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Folder:
    """Return a folder with a module for each name, which fails to be imported, and a program for each name."""
    folder = _folder(tmp_path_factory.mktemp("modules"), template)
    folder.lay_modules(STANDARD | INSTALLED, "{}.py", "raise ImportError('this is a trap')\n")
    folder.lay_programs()
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Folder:
    """Return a folder with a package for each name, which can be imported."""
    folder = _folder(tmp_path_factory.mktemp("packages"), template)
    folder.lay_modules(STANDARD | INSTALLED, "{}/__init__.py", "")
    folder.lay_modules({"agentloop/service/cli/main", "agentloop/__main__", "yaml/loader", "lxml/html"}, "{}.py", "")
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Folder:
    """Return a folder with a module for each name but those of the standard library, which `python -m` imports by itself."""
    folder = _folder(tmp_path_factory.mktemp("installed"), template)
    folder.lay_modules(INSTALLED - STANDARD - {"agentloop", "sitecustomize", "usercustomize"}, "{}.py", "")
    folder.lay_programs()
    return folder


def run(command: Sequence[str], folder: Folder, use: Use, url: str, **variables: str) -> int:
    """Run a command in a folder, and return its exit code."""
    process = subprocess.Popen(
        [*command, *use.words(url)],
        cwd=folder.path,
        env=folder.environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = ""
    try:
        for line in process.stdout if use.ready else ():
            output += line
            if use.ready in line:
                process.send_signal(signal.SIGTERM)
                break
        output += process.communicate(timeout=LONGEST)[0]
    finally:
        process.kill()
    sys.stdout.write(output)  # which pytest shows if the test fails
    return use.code if use.ready and process.returncode in {-signal.SIGTERM, 143} else process.returncode


# --- tests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "use"), FIRST_USES, ids=list(COMMANDS))
def test_a_command_runs_nothing_of_the_folder(name: str, use: Use, modules: Folder, server: ModelServer) -> None:
    """Each command does its work without a module, a program or a file of the folder that no person has named."""
    server.says("Hi.")
    modules.renew()
    code = run([AGENTLOOP, *name.split()], modules, use, server.base_url)
    assert modules.sprung == set()
    assert code == use.code or use.code < 0


EVERY_COMMAND = """
import json, os, sys

FOLDER = os.getcwd()

def watch(event, arguments):
    if event == "import" and arguments[2] is not None:
        leading = [entry for entry in arguments[2] if os.path.abspath(entry) == FOLDER]
        if leading:
            os.write(2, f"{arguments[0]} is looked for in {leading}".encode())
            os._exit(99)

sys.addaudithook(watch)
from agentloop.service.cli.main import main

codes = []
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as error:
        codes.append(error.code)
sys.stdout.flush()
os.write(2, ("codes: " + json.dumps(codes)).encode())
"""


def test_commands_run_no_package_of_the_folder(packages: Folder, server: ModelServer) -> None:
    """No command imports a package of the folder, nor has the folder on the import path while it imports anything."""
    server.says("Hi.")
    packages.renew()
    lines = [[*name.split(), *use.words(server.base_url)] for name, use in ALL_USES if not use.ready and use.code >= 0]
    process = subprocess.run(
        [sys.executable, "-P", "-c", EVERY_COMMAND, json.dumps(lines)],
        cwd=packages.path,
        env=packages.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert packages.sprung == set()
    assert process.returncode == 0, process.stderr
    assert len(json.loads(process.stderr.rpartition("codes: ")[2])) == len(lines)


@pytest.mark.parametrize("name", ["serve", "trace serve", "worker"])
def test_a_server_runs_no_package_of_the_folder(name: str, packages: Folder) -> None:
    """What runs until a signal imports no package of the folder."""
    packages.renew()
    (use,) = USES[name]
    assert run([AGENTLOOP, *name.split()], packages, use, "") == 0
    assert packages.sprung == set()


IN_MODULES = ["agentloop.service.cli.main", *(["agentloop"] if find_spec("agentloop.__main__") else [])]
LINES = ["tools check person.toml --allow person_tools", "submit person_app:loop Hi."]


@pytest.mark.parametrize("module", IN_MODULES)
@pytest.mark.parametrize("line", LINES)
def test_a_command_that_is_run_as_a_module_leaves_the_folder(module: str, line: str, installed: Folder) -> None:
    """`python -m` puts the folder on the import path, and the command removes it."""
    installed.renew()
    assert run([sys.executable, "-m", module], installed, Use(line), "") == 0
    assert installed.sprung == set()


@pytest.mark.parametrize("module", IN_MODULES)
def test_a_command_that_is_run_as_a_module_in_safe_mode_runs_nothing(module: str, modules: Folder) -> None:
    """With -P, `python` itself imports nothing from the folder either."""
    modules.renew()
    assert run([sys.executable, "-P", "-m", module], modules, Use(LINES[0]), "") == 0
    assert modules.sprung == set()


def test_the_completion_of_a_shell_runs_nothing(modules: Folder) -> None:
    """A shell asks the command for completions in whatever folder a person is."""
    modules.renew()
    words = {"_AGENTLOOP_COMPLETE": "bash_complete", "COMP_WORDS": "agentloop runs show rec", "COMP_CWORD": "3"}
    assert run([AGENTLOOP], modules, Use(""), "", **words) == 0
    assert modules.sprung == set()


def test_pythonpath_is_the_word_of_a_person(modules: Folder) -> None:
    """The traps work: they run when a person puts the folder on the import path."""
    modules.renew()
    run([AGENTLOOP], modules, Use("tools check person.toml"), "", PYTHONPATH=".")
    assert "encodings" in modules.sprung


def test_the_files_of_the_folder_decide_nothing(modules: Folder, tmp_path: Path) -> None:
    """The configuration is the one that is shown in an empty folder."""
    modules.renew()
    shown = [
        subprocess.run(
            [AGENTLOOP, "config", "show", "--json"],
            cwd=folder,
            env=modules.environment(),
            capture_output=True,
            check=True,
        )
        for folder in (modules.path, tmp_path)
    ]
    assert shown[0].stdout == shown[1].stdout
