"""`make mutants`: runs the tests against a sample of mutants of each room, and prints how many of them some test has found.

With `--kits`, only the kits of `agentloop.testing` judge the implementations of the package, and a table says which law found how many.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from math import sqrt
from pathlib import Path
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from tests.mutation.mutants import Mutant, sample_of
from tests.postgres import PostgresServer

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / ".mutation"
SURVIVORS = Path(__file__).parent / "survivors.md"
FOLDERS = (
    "agents",
    "compilers",
    "drivers",
    "durability",
    "durable",
    "events",
    "executors",
    "interception",
    "loop",
    "models",
    "policies",
    "regressions",
    "service/cli",
    "service/telemetry",
    "testing",
    "toolkits",
    "tools",
    "values",
)
"""The folders of the tests that are measured; those that run a mutated line are run."""
_ROOMS = (
    "agents",
    "compilers",
    "contracts",
    "drivers",
    "durable",
    "events",
    "executors",
    "interception",
    "loop",
    "mcp",
    "models",
    "policies",
    "service/cli",
    "service/telemetry",
    "testing",
    "toolkits",
    "tools",
    "values",
)
_PARTS: Mapping[str, Sequence[str]] = {
    "drivers": ("drivers", "models/modes/react.py", "models/modes/react_reading.py"),
    "modes": tuple(
        [
            f"models/modes/{name}.py"
            for name in ("answer_stream", "calls", "leaked_calls", "native", "structured", "text", "written_calls")
        ]
    ),
    "executors": ("executors",),
    "interceptors": (
        "interception/cancellation.py",
        "interception/rules.py",
        "interception/stops.py",
        "interception/tool_selection.py",
        "policies/audit_log.py",
        "policies/budgets/budget.py",
        "policies/guardrails.py",
        "policies/resilience",
    ),
    "compilers": ("compilers",),
    "models": ("models/fallback.py", "models/keys.py"),
    "wire formats": ("models/wire_formats",),
    "journals": ("durable/journal.py", "durable/held_claims.py", "durable/memory_journal.py", "durable/sqlite"),
    "stores": (
        "durable/folder_objects.py",
        "durable/grant_rows.py",
        "policies/budgets/memory_accounts.py",
        "policies/resilience/memory_store.py",
    ),
    "event buses": ("events/bus.py",),
}
"""The modules of the implementations that kits check, by kind; those of PostgreSQL and of sandboxes need what not every machine has."""


@frozen
class Panel:
    """Which tests judge the mutants of which modules.

    Attributes:
        name: the name, of a part of a file's name.
        tests: files and folders of tests.
        rooms: modules and packages inside of `agentloop`, by the name under which they are counted.
        few_tests: how many tests a mutant meets first.
        few_seconds: how long these may take together.
        many_tests: how many more tests it meets then.
        many_seconds: how long these may take together.
        has_types: whether the type checker judges the mutants that the tests have not found.
    """

    name: str
    tests: Sequence[str]
    rooms: Mapping[str, Sequence[str]]
    few_tests: int = 15
    few_seconds: float = 20.0
    many_tests: int = 120
    many_seconds: float = 40.0
    has_types: bool = True

    def only(self, rooms: Sequence[str], tests: Sequence[str]) -> Panel:
        """Return a panel for some of the rooms, and with other tests; all of them where none is named."""
        chosen = {room: self.rooms[room] for room in rooms or self.rooms}
        return evolve(self, rooms=chosen, tests=tests or self.tests)

    @property
    def places(self) -> list[str]:
        """All modules and packages whose mutants are judged."""
        return sorted({place for places in self.rooms.values() for place in places})


SUITE = Panel("suite", [f"tests/{name}" for name in FOLDERS], {room: (room,) for room in _ROOMS})
KITS = Panel("kits", ["tests/mutation/kits.py"], _PARTS, 12, 6.0, 60, 20.0, has_types=False)
_FOUND = {"killed", "timeout"}
_LOADED_SECONDS = 10.0
_FRESH_SECONDS = 30.0
_TIME_FACTOR = 2.0
"""A mutant may take this much more processor time than the tests took with coverage, before it counts as found by its time."""
_STATEMENT_LINES = 15
_SHARDS = 2
"""How many processes measure the tests, each some of the folders."""
_UNCHANGED = 3
_Z = 1.96

Tests: TypeAlias = Sequence[tuple[str, float]]
"""Names of tests, with their seconds."""


@frozen
class Covering:
    """Which tests run which lines.

    Attributes:
        tests: the tests with their seconds.
        lines: the numbers of the tests of each line, by module.
        digest: differs after each change of a test.
        panel: says how many of them judge a mutant.
    """

    tests: list[tuple[str, float]]
    lines: dict[str, dict[str, list[int]]]
    digest: str
    panel: Panel

    def tests_for(self, mutant: Mutant, room: str, found: Counter[str]) -> Iterator[Tests]:
        """Yield the tests to run: first some that are likely and quick to find the mutant, then others.

        Args:
            mutant: the mutant.
            room: the room of its module.
            found: how many mutants of the module each test has found so far.
        """
        ordered = self._ordered(mutant, room, found)
        few = _within(ordered[: self.panel.few_tests], self.panel.few_seconds)
        yield few
        yield _within(ordered[len(few) :][: self.panel.many_tests], self.panel.many_seconds)

    def _ordered(self, mutant: Mutant, room: str, found: Counter[str]) -> list[tuple[str, float]]:
        """Return all tests: those that have found most, then those of the room, the quickest case of each before a second of any."""
        tests = sorted([self.tests[number] for number in self._numbers(mutant)], key=lambda test: test[1])
        cases: Counter[str] = Counter()
        places: dict[str, int] = {}
        for name, _ in tests:
            test = name.partition("[")[0]
            places[name] = cases[test]
            cases[test] += 1
        own = f"tests/{room}/"
        return sorted(tests, key=lambda test: (-found[test[0]], places[test[0]], not test[0].startswith(own), test[1]))

    def _numbers(self, mutant: Mutant) -> list[int]:
        lines = self.lines.get(mutant.module, {})
        # A statement is measured by its first line; that of a module runs when it is imported, before any test.
        for line in range(mutant.line, max(mutant.line - _STATEMENT_LINES, 0), -1):
            if found := lines.get(str(line)):
                return found
        if str(mutant.line) in lines:
            return sorted({number for found in lines.values() for number in found})
        return []


def _within(tests: Tests, seconds: float) -> list[tuple[str, float]]:
    """Return the first tests that take this time together, and at least one."""
    chosen: list[tuple[str, float]] = []
    for test in tests:
        seconds -= test[1]
        if chosen and seconds < 0:
            break
        chosen.append(test)
    return chosen


@frozen
class Verdict:
    """What came of a mutant.

    Attributes:
        mutant: the mutant.
        result: `killed`, `timeout`, `refused` by the type checker, `survived`, or `uncovered` if no test runs the line; `open` as long
            as more tests may find it.
        test: the test that found it; empty if none did.
    """

    mutant: Mutant
    result: str
    test: str = ""


@frozen
class Workspace:
    """A copy of the repository in which modules are changed, and two processes that run its tests.

    Attributes:
        folder: the copy.
        loaded: the process that has loaded the package and the tests, and changes functions.
        fresh: the process that loads them for each mutant.
        distrusted: tests that have failed in it without a change.
        found: how many mutants each test has found, by module.
    """

    folder: Path
    loaded: subprocess.Popen[str] = field(repr=False)
    fresh: subprocess.Popen[str] = field(repr=False)
    distrusted: set[str] = field(factory=set)
    found: dict[str, Counter[str]] = field(factory=lambda: defaultdict(Counter))

    def judge(self, mutant: Mutant, covering: Covering, room: str) -> Verdict:
        """Run the tests that are likely and quick to find a mutant; what they do not find is `open`."""
        few = next(covering.tests_for(mutant, room, self.found[mutant.module]))
        if not few:
            return Verdict(mutant, "uncovered")
        verdict = self._run(mutant, few)
        return Verdict(mutant, "open") if verdict.result == "survived" else verdict

    def judge_open(self, mutant: Mutant, covering: Covering, room: str) -> Verdict:
        """Run more tests of a mutant that the first ones have not found.

        Which ones were the first is not known any more, after others have found mutants: all that are chosen now run.
        """
        few, others = covering.tests_for(mutant, room, self.found[mutant.module])
        return self._run(mutant, [*few, *others])

    def judge_types(self, mutant: Mutant) -> Verdict:
        """Check the types of a mutant that no test has found: `make test` checks them, too."""
        with self._changed(mutant):
            return Verdict(mutant, "survived" if self.has_valid_types() else "refused")

    def has_valid_types(self) -> bool:
        """Return whether the package is as its types say."""
        # An empty list in place of what a loop goes through has no type of its own: that is no mistake of types.
        command = [sys.executable, "-m", "mypy", "--disable-error-code", "var-annotated", "agentloop"]
        result = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        if result.returncode not in {0, 1}:
            raise RuntimeError(f"mypy fails: {result.stdout!r} {result.stderr!r}")
        return result.returncode == 0

    def _run(self, mutant: Mutant, tests: Tests) -> Verdict:
        answer = _ask(self.loaded, tests, _LOADED_SECONDS, module=mutant.module, source=mutant.source)
        if answer["result"] == "unsupported":
            answer = self._ask_fresh(mutant, tests)
        if answer["result"] not in _FOUND:
            return Verdict(mutant, answer["result"])
        self.found[mutant.module][answer["last"].partition("[")[0]] += 1
        return Verdict(mutant, answer["result"], answer["last"])

    def _ask_fresh(self, mutant: Mutant, tests: Tests) -> dict[str, str]:
        """Run tests with a changed module; one that fails without the change, too, does not count and is not run again."""
        while left := [test for test in tests if test[0] not in self.distrusted]:
            with self._changed(mutant):
                answer = _ask(self.fresh, left, _FRESH_SECONDS)
            last = [test for test in left if test[0] == answer["last"]]
            if answer["result"] not in _FOUND or not last:
                return answer
            if _ask(self.fresh, last, _FRESH_SECONDS)["result"] == "survived":
                return answer
            self.distrusted.add(answer["last"])
        return {"result": "survived"}

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.module
        original = path.read_text(encoding="utf-8")
        path.write_text(mutant.source, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(original, encoding="utf-8")


def _ask(server: subprocess.Popen[str], tests: Tests, base: float, **source: str) -> dict[str, str]:
    assert server.stdin is not None
    assert server.stdout is not None
    seconds = base + _TIME_FACTOR * sum(each for _, each in tests)
    request = {"tests": [name for name, _ in tests], "seconds": seconds, **source}
    print(json.dumps(request), file=server.stdin, flush=True)
    answer: dict[str, str] = json.loads(server.stdout.readline())
    return answer


@contextmanager
def workspace(panel: Panel) -> Iterator[Workspace]:
    """Copy the repository, and start the processes that run its tests."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for file in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / file).is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, folder / file)
        # Times of files are too coarse for modules that change within a second: what is compiled counts for a source of its hash.
        checked = ["--invalidation-mode", "checked-hash", "agentloop"]
        subprocess.run([sys.executable, "-m", "compileall", "-q", *checked], cwd=folder, check=True)
        # One database server for all forks, each of which would start its own.
        postgres = PostgresServer()
        stack.callback(postgres.close)
        environment = {"AGENTLOOP_TEST_POSTGRES": postgres.url, **_environment(folder)}
        loaded, fresh = [_server(stack, folder, environment, folders) for folders in (panel.tests, [])]
        yield Workspace(folder, loaded, fresh)


def _server(
    stack: ExitStack, folder: Path, environment: dict[str, str], folders: Sequence[str]
) -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, str(folder / "tests/mutation/fork_server.py"), *folders],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    stack.enter_context(server)
    stack.callback(server.stdin.close)
    return server


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}


def measure(space: Workspace, panel: Panel) -> Covering:
    """Return which tests run which lines; a file of tests is measured again when it or the package has changed."""
    paths = sorted({path for name in panel.tests for path in _files_at(space.folder / name)})
    tests = [
        path for path in paths if path.name.startswith("test_") or str(path.relative_to(space.folder)) in panel.tests
    ]
    helpers = [path for path in paths if path not in tests]
    digests = {str(path.relative_to(space.folder)): _digest([path]) for path in tests}
    places = sha256(" ".join(panel.places).encode()).hexdigest()[:8]
    file = RESULTS / f"covering-{places}-{_digest([*_modules(space.folder), *helpers])}.json"
    known = _read(file) if file.exists() else {"digests": {}, "tests": [], "lines": {}}
    changed = {name for name, digest in digests.items() if known["digests"].get(name) != digest}
    if changed:
        RESULTS.mkdir(exist_ok=True)
        shards = filter(None, [sorted(changed)[number::_SHARDS] for number in range(_SHARDS)])
        with ThreadPoolExecutor() as pool:
            measured = list(pool.map(partial(_measure_shard, space.folder, file, panel.places), range(_SHARDS), shards))
        kept = _only(known, known["digests"].keys() - changed)
        known = {**_merged([kept, *measured]), "digests": {**known["digests"], **digests}}
        file.write_text(json.dumps(known), encoding="utf-8")
    chosen = _only(known, digests.keys())
    return Covering([(name, seconds) for name, seconds in chosen["tests"]], chosen["lines"], _digest(paths), panel)


def _files_at(place: Path) -> list[Path]:
    return [place] if place.is_file() else list(place.rglob("*.py"))


def _modules(folder: Path) -> list[Path]:
    return sorted((folder / "agentloop").rglob("*.py"))


def _digest(paths: Sequence[Path]) -> str:
    digest = sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _measure_shard(
    folder: Path, file: Path, places: Sequence[str], number: int, names: Sequence[str]
) -> dict[str, Any]:
    part = file.with_suffix(f".{number}.json")
    command = [sys.executable, "-m", "pytest", "-v", "-n", "0", "-p", "tests.mutation.covering", "--tb=no", *names]
    with part.with_suffix(".log").open("w", encoding="utf-8") as log:
        # Tests that fail without a mutant are left out.
        environment = {**_environment(folder), "COVERING_FILE": str(part), "COVERING_PLACES": " ".join(places)}
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, check=False)
    document = _read(part)
    part.unlink()
    return document


def _read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document


def _only(document: dict[str, Any], files: AbstractSet[str]) -> dict[str, Any]:
    """Return a document with the tests of these files only."""
    numbers: dict[int, int] = {}
    for number, (name, _) in enumerate(document["tests"]):
        if name.partition("::")[0] in files:
            numbers[number] = len(numbers)
    lines = {
        module: {line: [numbers[each] for each in found if each in numbers] for line, found in by_line.items()}
        for module, by_line in document["lines"].items()
    }
    return {"tests": [document["tests"][number] for number in numbers], "lines": lines}


def _merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one document; the numbers of the tests of each follow those of the one before."""
    tests: list[Any] = []
    lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for document in documents:
        for module, numbers in document["lines"].items():
            for line, found in numbers.items():
                lines[module][line] += [len(tests) + number for number in found]
        tests += document["tests"]
    return {"tests": tests, "lines": lines}


def explained() -> set[str]:
    """Return the ids of the survivors that the page explains."""
    return set(re.findall(r"^\| `([0-9a-f]{8})` \|", SURVIVORS.read_text(encoding="utf-8"), re.MULTILINE))


def interval(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (E. B. Wilson, 1927)."""
    if not count:
        return 0.0, 1.0
    share, square = hits / count, _Z * _Z
    center = (share + square / (2 * count)) / (1 + square / count)
    margin = _Z / (1 + square / count) * sqrt(share * (1 - share) / count + square / (4 * count * count))
    return max(center - margin, 0.0), min(center + margin, 1.0)


def summary(room: str, verdicts: Sequence[Verdict]) -> str:
    """Return a line with the score of a room: the share of the mutants that tests alone have found, with its interval.

    A mutant of a line that no test runs counts as not found, but for kits, which are not written for the package: there it is shown apart.
    """
    known = explained()
    alive = [verdict for verdict in verdicts if verdict.result not in _FOUND]
    equal = [verdict for verdict in alive if verdict.mutant.id in known]
    refused = sum(verdict.result == "refused" for verdict in verdicts)
    uncovered = sum(verdict.result == "uncovered" for verdict in alive)
    count = len(verdicts) - len(equal)
    hits = len(verdicts) - len(alive)
    return (
        f"{room:<17} {_score(hits, count)}, {refused} others by mypy, {len(equal)} survivors explained, "
        f"{len(alive) - len(equal) - refused} not; {uncovered} are in lines that no test runs"
    )


def kits_summary(part: str, verdicts: Sequence[Verdict]) -> str:
    """Return a line with the score of the kits for a kind of implementations, of the mutants in lines that a kit runs."""
    known = explained()
    reached = [verdict for verdict in verdicts if verdict.result != "uncovered"]
    hits = sum(verdict.result in _FOUND for verdict in reached)
    equal = sum(verdict.result not in _FOUND and verdict.mutant.id in known for verdict in reached)
    others = len(verdicts) - len(reached)
    return f"{part:<17} {_score(hits, len(reached) - equal)}, {equal} survivors explained; {others} in lines that no kit runs"


def law_table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a line for each law that has found mutants, before any other one did: how many, and in which kits."""
    laws: dict[int, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        if found := re.search(r"test_(\w+)_law_(\d+)\[", verdict.test):
            laws[int(found[2])][found[1]] += 1
    total = sum(kits.total() for kits in laws.values())
    for law, kits in sorted(laws.items(), key=lambda each: -each[1].total()):
        listed = ", ".join(f"{kit} {count}" for kit, count in kits.most_common())
        yield f"law {law:>2} {kits.total():>4} {kits.total() / total:6.1%}  {listed}"


def _score(hits: int, count: int) -> str:
    low, high = interval(hits, count)
    return f"{hits:>4} of {count:>4} mutants killed: {hits / max(count, 1):6.1%} ({low:.1%} to {high:.1%})"


def run_room(panel: Panel, room: str, count: int, seed: int) -> list[Verdict]:
    """Judge a sample of the mutants of a room.

    A mutant that was found is not judged again while the package is the same, one that survived while the tests are the same.
    """
    with workspace(panel) as space:
        covering = measure(space, panel)
        sample = sample_of(space.folder, panel.rooms[room], count, seed)
        stored = RESULTS / f"verdicts-{panel.name}-{room.replace('/', '-')}-{_digest(_modules(space.folder))}.jsonl"
        known = {each["id"]: each for each in _stored(stored)}
        verdicts = {
            mutant.id: Verdict(mutant, each["result"], each["test"])
            for mutant in sample
            if (each := known.get(mutant.id)) and (each["result"] in _FOUND or each["tests"] == covering.digest)
        }
        _check_unchanged(space, covering, room, sample)

        def judge(by: Callable[[Mutant], Verdict], result: str) -> None:
            waiting = [each for each in sample if each.id not in verdicts or verdicts[each.id].result == result]
            for mutant in waiting:
                verdicts[mutant.id] = verdict = by(mutant)
                with stored.open("a", encoding="utf-8") as file:
                    entry = {"id": mutant.id, "result": verdict.result, "test": verdict.test, "tests": covering.digest}
                    file.write(json.dumps(entry) + "\n")
            _say(f"{room}: {sum(each.result in _FOUND for each in verdicts.values())} of {len(sample)} found so far")

        # First those that are found soon, so that most of the score is known early.
        judge(lambda mutant: space.judge(mutant, covering, room), "open")
        judge(lambda mutant: space.judge_open(mutant, covering, room), "open")
        if panel.has_types:
            judge(space.judge_types, "survived")
    for verdict in verdicts.values():
        if verdict.result not in _FOUND:
            _say(_described(verdict))
    return list(verdicts.values())


def _check_unchanged(space: Workspace, covering: Covering, room: str, sample: Sequence[Mutant]) -> None:
    """Check that the tests pass without a mistake; otherwise every mutant would seem to be found. Twice: one may fail by chance."""
    for mutant in sample[:_UNCHANGED]:
        same = evolve(mutant, source=(space.folder / mutant.module).read_text(encoding="utf-8"))
        results = [space.judge(same, covering, room).result for _ in range(2)]
        if not {"open", "uncovered"} & set(results):
            result = results[0]
            raise SystemExit(f"the tests of {mutant.module}:{mutant.line} fail without a mutant: {result}")
    if covering.panel.has_types and not space.has_valid_types():
        raise SystemExit("the type checker refuses the package without a mutant")


def _stored(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _described(verdict: Verdict) -> str:
    mutant = verdict.mutant
    head = f"{mutant.id} {verdict.result}: {mutant.module}:{mutant.line} {mutant.operator}"
    return f"{head}\n    - {mutant.before.strip()}\n    + {mutant.after.strip()}"


def main() -> None:
    """Run the rooms that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kits", action="store_true", help="only kits judge, and only what implements a contract")
    parser.add_argument("--room", action="append", choices=[*SUITE.rooms, *KITS.rooms], help="a room; all by default")
    parser.add_argument("--tests", action="append", help="a file or folder of tests; all by default")
    parser.add_argument("--count", type=int, default=300, help="the number of mutants of each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many rooms run side by side")
    parser.add_argument("--examples", type=int, default=10, help="how many examples the kits try")
    parser.add_argument("--no-types", action="store_true", help="leave out the type checker")
    options = parser.parse_args()
    os.environ["MUTATION_KIT_EXAMPLES"] = str(options.examples)
    panel = (KITS if options.kits else SUITE).only(options.room, options.tests)
    panel = evolve(panel, has_types=panel.has_types and not options.no_types)
    # Once for all rooms, which measure nothing again.
    with workspace(panel) as space:
        measure(space, panel)

    def judged(room: str) -> tuple[str, list[Verdict]]:
        verdicts = run_room(panel, room, options.count, options.seed)
        line = (kits_summary if options.kits else summary)(room, verdicts)
        _say(line)
        return line, verdicts

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(judged, panel.rooms))
    verdicts = [verdict for _, of_room in results for verdict in of_room]
    lines = [line for line, _ in results]
    if options.kits:
        lines += [kits_summary("all", verdicts), "", *law_table(verdicts)]
    if len(lines) > 1:
        _say("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
