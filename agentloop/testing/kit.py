"""What all kits have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from agentloop.errors import ConfigurationError
from agentloop.testing.laws import LawBroken

T = TypeVar("T")


class Kit:
    """Checks an implementation of a contract against the laws that the contract names.

        @pytest.mark.parametrize("law", ExecutorKit.laws)
        def test_my_executor_keeps_the_law(law: int) -> None:
            ExecutorKit(MyExecutor).check(law)

    Args:
        examples: how many examples Hypothesis tries for each law.

    Attributes:
        laws: the numbers of the laws that the kit checks.
    """

    laws: tuple[int, ...] = ()

    def __init__(self, *, examples: int = 100) -> None:
        self.examples = examples

    def checks(self) -> Mapping[int, Callable[[], None]]:
        """Return the check of each law."""
        return {law: getattr(self, f"law_{law}") for law in self.laws}

    def check(self, law: int) -> None:
        """Check one law.

        Raises:
            LawBroken: when the implementation breaks it; the note says by which example.
            ConfigurationError: when the kit does not check this law.
        """
        check = self.checks().get(law)
        if check is None:
            raise ConfigurationError(f"{type(self).__name__} checks the laws {self.laws}, not {law}")
        try:
            check()
        except LawBroken:
            raise
        except Exception as error:
            raise LawBroken(law, f"the check ended with {type(error).__name__}: {error}") from error

    def check_all(self) -> None:
        """Check every law of the kit, in order.

        Raises:
            LawBroken: by the first law that is broken.
        """
        for law in self.laws:
            self.check(law)

    def for_all(self, strategy: SearchStrategy[T], holds: Callable[[T], None]) -> None:
        """Try a check on examples; the same ones each time, the smallest failing one is reported."""
        configured = settings(
            max_examples=self.examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        configured(given(strategy)(holds))()
