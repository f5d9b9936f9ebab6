"""The kits as classes that pytest collects: `pytest examples/extending`."""

from __future__ import annotations

from pathlib import Path

import pytest
from extending.driver import planning_driver
from extending.executor import CountingExecutor
from extending.interceptor import MaskCards
from extending.journal import journal_kit

from agentloop import ToolExecutor
from agentloop.testing import DriverKit, ExecutorKit, InterceptorKit, JournalKit, LawTests


class TestPlanningDriver(LawTests):
    """A driver: the kit is a class attribute."""

    kit = DriverKit(planning_driver, max_inferences_per_step=2, examples=5)


class TestCountingExecutor(LawTests):
    """An executor, made by a function."""

    kit = ExecutorKit(lambda: CountingExecutor(ToolExecutor()), examples=5)


class TestMaskCards(LawTests):
    """An interceptor."""

    kit = InterceptorKit(MaskCards, examples=5)


class TestJsonLinesJournal(LawTests):
    """A journal that needs a fixture."""

    kit = JournalKit

    @pytest.fixture(autouse=True)
    def _use(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make_kit(self) -> JournalKit:
        return journal_kit(self.folder, examples=3)
