"""Law suites, doubles and controlled clocks for those who extend agentloop; needs the extra `testing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.testing.clocks import CountingIds as CountingIds
    from agentloop.testing.clocks import LoopClock as LoopClock
    from agentloop.testing.clocks import ManualClock as ManualClock
    from agentloop.testing.clocks import VirtualTimeLoop as VirtualTimeLoop
    from agentloop.testing.clocks import run_virtual as run_virtual
    from agentloop.testing.driver_kit import DriverKit as DriverKit
    from agentloop.testing.driver_kit import Journey as Journey
    from agentloop.testing.executor_bench import ExecutorBench as ExecutorBench
    from agentloop.testing.executor_kit import ExecutorKit as ExecutorKit
    from agentloop.testing.interceptor_kit import InterceptorKit as InterceptorKit
    from agentloop.testing.kit import Kit as Kit
    from agentloop.testing.laws import LAWS as LAWS
    from agentloop.testing.laws import LawBroken as LawBroken
    from agentloop.testing.laws import require as require
    from agentloop.testing.scenario import SCENARIOS as SCENARIOS
    from agentloop.testing.scenario import Scenario as Scenario
    from agentloop.testing.scenario import Turn as Turn
    from agentloop.testing.toy_tools import Ledger as Ledger
    from agentloop.testing.toy_tools import Toy as Toy
    from agentloop.testing.toy_tools import call as call
    from agentloop.testing.toy_tools import toys as toys
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.testing.clocks": "CountingIds LoopClock ManualClock VirtualTimeLoop run_virtual",
            "agentloop.testing.driver_kit": "DriverKit Journey",
            "agentloop.testing.executor_bench": "ExecutorBench",
            "agentloop.testing.executor_kit": "ExecutorKit",
            "agentloop.testing.interceptor_kit": "InterceptorKit",
            "agentloop.testing.kit": "Kit",
            "agentloop.testing.laws": "LAWS LawBroken require",
            "agentloop.testing.scenario": "SCENARIOS Scenario Turn",
            "agentloop.testing.toy_tools": "Ledger Toy call toys",
        },
    )
