"""A driver of your own: it makes a plan first, keeps it in the state, and shows it to the model in every step."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen

from agentloop import Message
from agentloop.contracts import CanAcceptExecutionScope, CanInfer, ExecutionScope
from agentloop.drivers import InferringDriver, StepDraft
from agentloop.testing import DriverKit, Scenario, check_laws
from agentloop.values import FinishReason, InferenceRequest, InferenceResponse, ResponsePart, Text, Usage


@frozen(kw_only=True)
class PlanningDriver(InferringDriver):
    """Asks a planner in the first step. A step makes at most two inferences, and the tokens of both count."""

    planner: CanInfer = field()

    def with_execution_scope(self, scope: ExecutionScope) -> PlanningDriver:
        """Return a copy of which both models are bound to an execution."""
        bound = super().with_execution_scope(scope)
        if isinstance(self.planner, CanAcceptExecutionScope):
            bound = evolve(bound, planner=self.planner.with_execution_scope(scope.for_another_model()))
        return bound

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        plan = draft.state.extension("plan")
        if plan is None:
            asked = InferenceRequest(tuple(messages), "Write a plan in one sentence.")
            plan = (await self.infer(draft, asked, inference=self.planner)).text
            draft.state = draft.state.with_extension("plan", plan)
        request = self.request(draft, messages)
        response = await self.infer(draft, request.with_system_prompt(f"{request.system_prompt}\nThe plan: {plan}"))
        self.conclude(draft, response)  # an answer that was cut off does not complete the execution
        return response.parts


class OnePlan(CanInfer):
    """A planner for tests."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:  # noqa: ARG002  # one plan for everything
        return InferenceResponse((Text("First look, then answer."),), FinishReason.STOP, Usage(7, 3))


def planning_driver(scenario: Scenario) -> PlanningDriver:
    """Return the driver with a model that follows a scenario, and a planner that the kit watches."""
    return PlanningDriver(inference=scenario.inference(), planner=scenario.watch(OnePlan()))


if __name__ == "__main__":
    print(check_laws(DriverKit(planning_driver, max_inferences_per_step=2, examples=10)))
