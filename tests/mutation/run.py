"""`make mutants`: runs the tests against a sample of mutants of each room, and prints how many of them some test has found."""

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
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from hashlib import sha256
from math import sqrt
from pathlib import Path
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from tests.mutation.covering import ROOMS
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
_TEST_FOLDERS = [f"tests/{name}" for name in FOLDERS]
_FEW_TESTS = 15
_FEW_SECONDS = 20.0
_MANY_TESTS = 120
_MANY_SECONDS = 40.0
_FOUND = {"killed", "timeout", "refused"}
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
    """

    tests: list[tuple[str, float]]
    lines: dict[str, dict[str, list[int]]]
    digest: str

    def tests_for(self, mutant: Mutant, room: str, found: Counter[str]) -> Iterator[Tests]:
        """Yield the tests to run: first some that are likely and quick to find the mutant, then others.

        Args:
            mutant: the mutant.
            room: the room of its module.
            found: how many mutants of the module each test has found so far.
        """
        ordered = self._ordered(mutant, room, found)
        few = _within(ordered[:_FEW_TESTS], _FEW_SECONDS)
        yield few
        yield _within(ordered[len(few) :][:_MANY_TESTS], _MANY_SECONDS)

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
        result: `killed`, `timeout`, `refused` by the type checker, `survived`, or `uncovered` if no test runs the line.
    """

    mutant: Mutant
    result: str


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

    def judge(self, mutant: Mutant, covering: Covering, room: str) -> str:
        """Run the tests that are likely and quick to find a mutant; what they do not find is `open`."""
        few = next(covering.tests_for(mutant, room, self.found[mutant.module]))
        if not few:
            return "uncovered"
        result = self._ask_loaded(mutant, few)
        if result == "unsupported":
            result = self._ask_fresh(mutant, few)
        return "open" if result == "survived" else result

    def judge_types(self, mutant: Mutant, covering: Covering, room: str) -> str:
        """Check the types of a mutant that the first tests have not found: `make test` checks them, too."""
        with self._changed(mutant):
            return "open" if self.has_valid_types() else "refused"

    def has_valid_types(self) -> bool:
        """Return whether the package is as its types say."""
        # An empty list in place of what a loop goes through has no type of its own: that is no mistake of types.
        command = [sys.executable, "-m", "mypy", "--disable-error-code", "var-annotated", "agentloop"]
        result = subprocess.run(command, cwd=self.folder, capture_output=True, check=False)
        if result.returncode not in {0, 1}:
            raise RuntimeError(f"mypy fails: {result.stdout!r} {result.stderr!r}")
        return result.returncode == 0

    def judge_open(self, mutant: Mutant, covering: Covering, room: str) -> str:
        """Run more tests of a mutant that neither the first ones nor the type checker have found.

        Which ones were the first is not known any more, after others have found mutants: all that are chosen now run.
        """
        few, others = covering.tests_for(mutant, room, self.found[mutant.module])
        result = self._ask_loaded(mutant, [*few, *others])
        return self._ask_fresh(mutant, [*few, *others]) if result == "unsupported" else result

    def _ask_loaded(self, mutant: Mutant, tests: Tests) -> str:
        answer = _ask(self.loaded, tests, _LOADED_SECONDS, module=mutant.module, source=mutant.source)
        if answer["result"] in _FOUND:
            self.found[mutant.module][answer["last"]] += 1
        return answer["result"]

    def _ask_fresh(self, mutant: Mutant, tests: Tests) -> str:
        """Run tests with a changed module; one that fails without the change, too, does not count and is not run again."""
        while left := [test for test in tests if test[0] not in self.distrusted]:
            with self._changed(mutant):
                answer = _ask(self.fresh, left, _FRESH_SECONDS)
            last = [test for test in left if test[0] == answer["last"]]
            if answer["result"] not in _FOUND or not last:
                return answer["result"]
            if _ask(self.fresh, last, _FRESH_SECONDS)["result"] == "survived":
                return answer["result"]
            self.distrusted.add(answer["last"])
        return "survived"

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
def workspace() -> Iterator[Workspace]:
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
        loaded, fresh = [_server(stack, folder, environment, folders) for folders in (_TEST_FOLDERS, [])]
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


def measure(space: Workspace) -> Covering:
    """Return which tests run which lines; a file of tests is measured again when it or the package has changed."""
    paths = sorted(path for name in _TEST_FOLDERS for path in (space.folder / name).rglob("*.py"))
    helpers = [path for path in paths if not path.name.startswith("test_")]
    digests = {str(path.relative_to(space.folder)): _digest([path]) for path in paths if path not in helpers}
    file = RESULTS / f"covering-{_digest([*_modules(space.folder), *helpers])}.json"
    known = _read(file) if file.exists() else {"digests": {}, "tests": [], "lines": {}}
    changed = {name for name, digest in digests.items() if known["digests"].get(name) != digest}
    if changed:
        RESULTS.mkdir(exist_ok=True)
        shards = filter(None, [sorted(changed)[number::_SHARDS] for number in range(_SHARDS)])
        with ThreadPoolExecutor() as pool:
            measured = list(pool.map(partial(_measure_shard, space.folder, file), range(_SHARDS), shards))
        known = {**_merged([_only(known, digests.keys() - changed), *measured]), "digests": digests}
        file.write_text(json.dumps(known), encoding="utf-8")
    return Covering([(name, seconds) for name, seconds in known["tests"]], known["lines"], _digest(paths))


def _modules(folder: Path) -> list[Path]:
    return sorted((folder / "agentloop").rglob("*.py"))


def _digest(paths: Sequence[Path]) -> str:
    digest = sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _measure_shard(folder: Path, file: Path, number: int, names: Sequence[str]) -> dict[str, Any]:
    part = file.with_suffix(f".{number}.json")
    command = [sys.executable, "-m", "pytest", "-v", "-n", "0", "-p", "tests.mutation.covering", "--tb=no", *names]
    with part.with_suffix(".log").open("w", encoding="utf-8") as log:
        # Tests that fail without a mutant are left out.
        environment = {**_environment(folder), "COVERING_FILE": str(part)}
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
    """Return a line with the score of a room: the share of the mutants that were found, with its interval."""
    known = explained()
    alive = [verdict for verdict in verdicts if verdict.result not in _FOUND]
    equal = [verdict for verdict in alive if verdict.mutant.id in known]
    count = len(verdicts) - len(equal)
    hits = len(verdicts) - len(alive)
    refused = sum(verdict.result == "refused" for verdict in verdicts)
    low, high = interval(hits, count)
    return (
        f"{room:<13} {hits:>4} of {count:>4} mutants killed: {hits / max(count, 1):6.1%} ({low:.1%} to {high:.1%}), {refused} of them by mypy, "
        f"{len(equal)} survivors explained, {len(alive) - len(equal)} not"
    )


def run_room(room: str, count: int, seed: int) -> list[Verdict]:
    """Judge a sample of the mutants of a room.

    A mutant that was found is not judged again while the package is the same, one that survived while the tests are the same.
    """
    with workspace() as space:
        covering = measure(space)
        sample = sample_of(space.folder, room, count, seed)
        stored = RESULTS / f"verdicts-{room}-{_digest(_modules(space.folder))}.jsonl"
        known = {each["id"]: each for each in _stored(stored)}
        results = {
            name: each["result"]
            for name, each in known.items()
            if each["result"] in _FOUND or each["tests"] == covering.digest
        }
        _check_unchanged(space, covering, room, sample)
        # First those that are found soon, so that most of the score is known early.
        for judge in (space.judge, space.judge_types, space.judge_open):
            judged = [mutant for mutant in sample if results.get(mutant.id, "open") == "open"]
            for mutant in judged:
                results[mutant.id] = judge(mutant, covering, room)
                with stored.open("a", encoding="utf-8") as file:
                    file.write(
                        json.dumps({"id": mutant.id, "result": results[mutant.id], "tests": covering.digest}) + "\n"
                    )
            _say(f"{room}: {sum(results[each.id] in _FOUND for each in sample)} of {len(sample)} found so far")
    verdicts = [Verdict(mutant, results[mutant.id]) for mutant in sample]
    for verdict in verdicts:
        if verdict.result not in _FOUND:
            _say(_described(verdict))
    return verdicts


def _check_unchanged(space: Workspace, covering: Covering, room: str, sample: Sequence[Mutant]) -> None:
    """Check that the tests pass without a mistake; otherwise every mutant would seem to be found. Twice: one may fail by chance."""
    for mutant in sample[:_UNCHANGED]:
        same = evolve(mutant, source=(space.folder / mutant.module).read_text(encoding="utf-8"))
        results = [space.judge(same, covering, room) for _ in range(2)]
        if not {"open", "uncovered"} & set(results):
            result = results[0]
            raise SystemExit(f"the tests of {mutant.module}:{mutant.line} fail without a mutant: {result}")
    if not space.has_valid_types():
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
    parser.add_argument("--room", action="append", choices=ROOMS, help="a room; all by default")
    parser.add_argument("--count", type=int, default=300, help="the number of mutants of each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many rooms run side by side")
    arguments = parser.parse_args()
    # Once for all rooms, which measure nothing again.
    with workspace() as space:
        measure(space)

    def judged(room: str) -> str:
        line = summary(room, run_room(room, arguments.count, arguments.seed))
        _say(line)
        return line

    with ThreadPoolExecutor(arguments.jobs) as pool:
        lines = list(pool.map(judged, arguments.room or ROOMS))
    if len(lines) > 1:
        _say("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
