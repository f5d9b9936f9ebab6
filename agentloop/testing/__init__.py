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
    from agentloop.testing.equivalence_kit import Account as Account
    from agentloop.testing.equivalence_kit import EquivalenceKit as EquivalenceKit
    from agentloop.testing.equivalence_kit import account_of as account_of
    from agentloop.testing.executor_bench import ExecutorBench as ExecutorBench
    from agentloop.testing.executor_kit import ExecutorKit as ExecutorKit
    from agentloop.testing.interceptor_kit import InterceptorKit as InterceptorKit
    from agentloop.testing.journal_bench import Chronicle as Chronicle
    from agentloop.testing.journal_kit import JournalKit as JournalKit
    from agentloop.testing.kit import LAWS as LAWS
    from agentloop.testing.kit import Kit as Kit
    from agentloop.testing.kit import LawBroken as LawBroken
    from agentloop.testing.kit import require as require
    from agentloop.testing.playback import play as play
    from agentloop.testing.scenario import NOTATIONS as NOTATIONS
    from agentloop.testing.scenario import SCENARIOS as SCENARIOS
    from agentloop.testing.scenario import VALID_SCENARIOS as VALID_SCENARIOS
    from agentloop.testing.scenario import Scenario as Scenario
    from agentloop.testing.scenario import ScriptedTurn as ScriptedTurn
    from agentloop.testing.scenario import valid_scenarios as valid_scenarios
    from agentloop.testing.toy_tools import Ledger as Ledger
    from agentloop.testing.toy_tools import Toy as Toy
    from agentloop.testing.toy_tools import call as call
    from agentloop.testing.toy_tools import toys as toys
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.testing.journal_bench": "Chronicle",
            "agentloop.testing.clocks": "CountingIds LoopClock ManualClock VirtualTimeLoop run_virtual",
            "agentloop.testing.driver_kit": "DriverKit Journey",
            "agentloop.testing.equivalence_kit": "Account EquivalenceKit account_of",
            "agentloop.testing.executor_bench": "ExecutorBench",
            "agentloop.testing.executor_kit": "ExecutorKit",
            "agentloop.testing.interceptor_kit": "InterceptorKit",
            "agentloop.testing.journal_kit": "JournalKit",
            "agentloop.testing.kit": "Kit LAWS LawBroken require",
            "agentloop.testing.scenario": "NOTATIONS SCENARIOS VALID_SCENARIOS Scenario ScriptedTurn valid_scenarios",
            "agentloop.testing.playback": "play",
            "agentloop.testing.toy_tools": "Ledger Toy call toys",
        },
    )
