"""The list of slow tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.costs import Cost, find_slow_tests, format_costs, read_slow_tests


def test_what_the_list_names_exists() -> None:
    """A test that was renamed or removed is not left behind in the list; `make test-times` writes it anew."""
    names = defaultdict(set)
    for name in read_slow_tests():
        file, _, rest = name.partition("::")
        names[file].add(rest.partition("::")[0])
    root = Path(__file__).parents[1]
    assert {file for file in names if not (root / file).is_file()} == set()
    texts = {file: (root / file).read_text(encoding="utf-8") for file in names}
    assert [(file, item) for file, items in names.items() for item in items if item not in texts[file]] == []


def test_the_mean_time_of_cases_decides() -> None:
    """A test with many cases is slow if each of them is."""
    costs = {"a": Cost(cpu=2.0, cases=100), "b": Cost(cpu=2.0, cases=4), "c": Cost(cpu=0.2, cases=1)}
    assert find_slow_tests(costs, []) == ["b", "c"]


@pytest.mark.parametrize(("cpu", "before", "after"), [(0.05, [], []), (0.05, ["a"], ["a"]), (0.02, ["a"], [])])
def test_a_slow_test_stays_slow_near_the_bound(cpu: float, before: list[str], after: list[str]) -> None:
    """A second measurement, which differs by a little, writes the same list."""
    assert find_slow_tests({"a": Cost(cpu=cpu, cases=1)}, before) == after


def test_the_table_has_a_row_for_each_file_and_the_sum() -> None:
    """Slow tests are left out of the sums of what is fast."""
    costs = {"x.py::a": Cost(1.0, 2.0, 1), "x.py::b": Cost(0.5, 1.0, 10), "y.py::c": Cost(4.0, 4.0, 1)}
    rows = [line.split() for line in format_costs(costs, ["x.py::a"])]
    assert rows[1:] == [
        ["4.0", "4.0", "1", "4.0", "1", "y.py"],
        ["1.5", "3.0", "11", "0.5", "10", "x.py"],
        ["5.5", "7.0", "12", "4.5", "11", "all"],
    ]
