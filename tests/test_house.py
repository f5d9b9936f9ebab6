"""The shape of the code: how long functions are, how files depend on each other, what names mean."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import agentloop

ROOT = Path(agentloop.__file__).parent

ONE_CHILD: dict[str, str] = {
    "Append": "the action of an append; the one that counts uses of grants is loaded and run where there are grants",
    "RecordAppend": "the same for PostgreSQL",
    "AgentStop": "a requested stop keeps an outcome, one by a time limit that interrupts an interceptor drops it",
    "CanKeepTokens": "the contract of stores of tokens; programs implement it over their own stores of secrets",
    "CanSignRequests": "the contract of signers; services of third parties have signatures of their own",
    "CallPolicy": "how the layers of resilience treat a call; `ToolPolicy` adds how the executor runs it",
    "DriverSettings": "the parameters of a driver, which `for_model` passes on; `ModelOptions` adds those of the loop",
    "FileGrants": "what a caller grants an agent file, which the builder is told apart; `FileOptions` adds the parts of the loop",
    "ForwardingDriver": "the base of wrappers of programs; kits watch a driver by one",
    "ForwardingExecutor": "the base of wrappers of programs; kits watch an executor by one",
    "EndedByLayer": "how a layer ends a call, which the batch knows; a rejected early run is a case of one layer",
    "AgentTool": "an agent as a tool; the one that is asked about data has an answer of another type in each call",
    "GroupedCallingTool": "a tool of an ensemble that calls tools; one that also labels its results is recognized by its class",
    "GroupedThreadTool": "the same for one that runs in a thread",
    "FrozenDict": "any mapping; `JsonObject` promises values that are JSON",
    "MemoryQueue": "its moves are compared with rules that know none of its code",
    "Inboxes": "the inboxes of running executions, and those that a replay fills from the record",
    "MCPError": "an error of the protocol, and that of a task, as generation 2 of the MCP SDK has them",
    "ModelSettings": "what the driver of `for_model` is made with; `ModelOptions` adds the parts of the loop",
    "OAuthClientProvider": "what generation 1 of the MCP SDK lacks, below what both generations lack",
    "JournalConflict": "another writer has continued the execution; `ExecutionClaimed` says that it still does",
    "Ledger": "what toys of this process note; `FileLedger` is shared with those of another process",
    "MemoryJournal": "`CrashableJournal` is a journal for tests that loses what a crash would lose",
    "CommonOptions": "the parts of a loop without its dependencies, whose type only some calls name; `LoopOptions` adds them",
    "RareOptions": "the parts of a loop that signatures do not show; `CommonOptions` adds those that they do",
    "RemoteToolExecutor": "the base of executors of programs, which write how a call travels",
    "ScriptedInference": "the scripted model; that of a scenario counts its own requests alone",
    "ServerSession": "the border to the MCP SDK, which is loaded late",
    "StreamDecoder": "the contract of decoders, beside `WireFormat`; wire formats of third parties implement it",
    "ToolFailed": "a failure that a tool explains to the model; `HostUnknown` may be over at the next try",
    "ExecutorKit": "the kit of executors; that of layers around calls checks an executor with them",
    "ToolCallingDriver": "plays an exported test back",
    "VirtualTimeLoop": "time that jumps; `InterleavingLoop` also decides which task runs next",
}
"""Base classes with one subclass in the package, and why they are not one class with it."""

PUBLIC_FILES: dict[str, str] = {
    "service/cli/completion.py main": "the description of the commands, which the package carries",
    "service/cli/main.py open_null_device": "the null device",
    "testing/sandbox_kit.py _host": "what a command in a sandbox must not reach, whoever it runs as",
    "toolkits/sandboxes/archive.py pack": "bytes in memory",
    "toolkits/sandboxes/bubblewrap.py _write_limits": "files of a control group",
    "toolkits/sandboxes/guard.py _write": "files of the kernel, and of a sandbox",
}
"""Functions that write files which others may read, and what these are. All others hold what people and models have said, or keys."""

SAME_NAME: dict[str, str] = dict.fromkeys(
    ["ServedTasks", "TaskExtension", "TaskFailed"],
    "what `agentloop.mcp.sdk` does about tasks, with each generation of the MCP SDK",
)
"""Class names that occur more than once, and why."""


@cache
def sources() -> dict[str, tuple[str, ast.Module]]:
    """Return text and syntax tree of every module, by its path inside the package."""
    files = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in files.items()}


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """Return every node of every module."""
    return {name: list(ast.walk(tree)) for name, (_, tree) in sources().items()}


def module_name(path: str) -> str:
    """Return the dotted name of a module."""
    parts = ("agentloop", *Path(path).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def code_lines(name: str) -> set[int]:
    """Return the numbers of the lines that hold code: no blank lines, no comments, no docstrings."""
    text = sources()[name][0]
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"}
    for node in nodes()[name]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def function_lengths() -> dict[str, int]:
    """Return the lines of code of every function of the package."""
    lengths: dict[str, int] = {}
    for name, inside_of in nodes().items():
        code = code_lines(name)
        for node in inside_of:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                inside = code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
                lengths[f"{name}:{node.lineno} {node.name}"] = len(inside)
    return lengths


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class of the package with the file that it is in."""
    for name, inside_of in nodes().items():
        yield from ((name, node) for node in inside_of if isinstance(node, ast.ClassDef))


def importers() -> dict[str, set[str]]:
    """Return for every module but the packages themselves which modules import it."""
    modules = {module_name(name): name for name in sources()}
    found: dict[str, set[str]] = {name: set() for path, name in modules.items() if not name.endswith("__init__.py")}
    for importer, inside_of in nodes().items():
        for node in inside_of:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    target = modules.get(f"{node.module}.{alias.name}") or modules.get(node.module)
                    if target in found:
                        found[target].add(importer)
    return found


def test_functions_fit_on_a_screen() -> None:
    """Nine functions of ten have at most 16 lines of code, and none has more than 50."""
    lengths = function_lengths()
    ordered = sorted(lengths.values())
    assert ordered[int(0.9 * len(ordered))] <= 16
    assert {place: length for place, length in lengths.items() if length > 50} == {}


def test_few_modules_serve_one_other_module() -> None:
    """At most 16 % of the modules have exactly one importer, such as features: others are usually a part of their importer."""
    counts = importers()
    exported = {path for text in stubs() for path in text}
    single = [name for name, users in counts.items() if len(users) == 1 and name not in exported]
    assert len(single) / len(counts) <= 0.16, single


def stubs() -> Iterator[set[str]]:
    """Yield the modules that each package's stub exports names of."""
    modules = {module_name(name): name for name in sources()}
    for stub in ROOT.rglob("__init__.pyi"):
        imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
        yield {modules[str(node.module)] for node in imports}


def test_few_files_are_fragments() -> None:
    """At most 9 % of the files have fewer than 40 lines; a package's stub counts as a part of its `__init__`."""
    short = []
    for name, (text, _) in sources().items():
        stub = (ROOT / name).with_suffix(".pyi")
        lines = text.splitlines() + (stub.read_text().splitlines() if stub.exists() else [])
        short += [name] if len(lines) < 40 else []
    assert len(short) / len(sources()) <= 0.09, short


def test_a_base_class_has_more_than_one_subclass() -> None:
    """A base class with one subclass is one class cut in two, unless it is a contract or is listed with its reason."""
    children: dict[str, set[str]] = defaultdict(set)
    names = {node.name for name, node in classes() if not name.startswith("contracts/") and node.name[0] != "_"}
    for _, node in classes():
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(plain, ast.Name):
                children[plain.id].add(node.name)
    cut = {base for base, subclasses in children.items() if len(subclasses) == 1 and base in names}
    assert cut == set(ONE_CHILD)


def test_a_class_name_occurs_once() -> None:
    """Two public classes of the package never share a name, unless it is listed with its reason."""
    counts = Counter(node.name for _, node in classes() if not node.name.startswith("_"))
    assert {name for name, count in counts.items() if count > 1} == set(SAME_NAME)


def test_values_compare_and_show_themselves_by_their_base_class() -> None:
    """No class lets attrs write methods that `Value` and `ShownByField` have; drivers and executors follow their users' classes.

    Those of `ShownByField` are compared by identity.
    """
    by_name = {node.name: node for _, node in classes() if node.name[0] != "_"}

    def ancestors(node: ast.ClassDef) -> set[str]:
        plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
        names = {base.id for base in plain if isinstance(base, ast.Name)}
        return names.union(*(ancestors(by_name[name]) for name in names & set(by_name)))

    def is_attrs(decorator: str) -> bool:
        return "frozen" in decorator or "define" in decorator

    generated: dict[str, set[str]] = {}
    for name, node in classes():
        above, calls = ancestors(node), [each for each in node.decorator_list if is_attrs(ast.unparse(each))]
        if not calls or above & {"CanUseTools", "CanExecuteToolCalls"}:
            continue
        options = calls[0].keywords if isinstance(calls[0], ast.Call) else []
        switched_off = {each.arg for each in options if ast.unparse(each.value) == "False"}
        expected = {"eq", "repr"} if above & {"Value", "ShownByField"} else set[str]()
        if expected - switched_off:
            generated[f"{name}:{node.lineno} {node.name}"] = expected - switched_off
    assert generated == {}


# --- files ----------------------------------------------------------------------------------------------------------


def is_open_to_others(call: ast.Call) -> bool:
    """Return whether a call creates a file with the permissions of the umask."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [ast.unparse(argument) for argument in [*call.args, *[keyword.value for keyword in call.keywords]]]
    if called in {"write_text", "write_bytes", "touch"}:
        return True
    is_writing = called == "open" and any(re.fullmatch(r"'[rb]*[wax+][wax+b]*'|mode", text) for text in texts)
    return is_writing and not any(keyword.arg == "opener" for keyword in call.keywords)


def test_files_are_for_their_owner() -> None:
    """A file that is written is created by `open_private` or a temporary file, unless it is listed with what it is."""
    found = {
        f"{name} {function.name}"
        for name, inside_of in nodes().items()
        for function in inside_of
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Call) and is_open_to_others(call)
    }
    assert found == set(PUBLIC_FILES)


# --- patterns -------------------------------------------------------------------------------------------------------


def test_possessive_groups_are_atomic() -> None:
    """Python before 3.11.5 goes back inside of the other ones, so that a pattern matches too much."""
    found = [
        (name, node.value)
        for name, inside_of in nodes().items()
        for node in inside_of
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(r"\)(?:[*+?]|\{\d*,?\d*\})\+", node.value)
        if has_open_possessive_group(node.value)
    ]
    assert found == []
    assert has_open_possessive_group(r"(?:a|b+)*+")
    assert not has_open_possessive_group(r"x(?>a|b+)*+[a-z]++")


def has_open_possessive_group(pattern: str) -> bool:
    """Return whether a pattern has a possessive group that is not atomic; a text that is no pattern has none."""
    with suppress(re.error):
        return _has_open_group(import_module("re._parser").parse(pattern))
    return False


def _has_open_group(node: Any) -> bool:
    if type(node).__name__ == "SubPattern":
        return any(_has_open_group(part) for part in node)
    if not isinstance(node, tuple | list):
        return False
    if len(node) == 2 and str(node[0]) == "POSSESSIVE_REPEAT":
        body = node[1][2]
        kinds = [str(kind) for kind, _ in body]
        if len(kinds) > 1 or kinds[0] not in {"IN", "LITERAL", "NOT_LITERAL", "ANY", "ATOMIC_GROUP"}:
            return True
    return any(_has_open_group(part) for part in node)
