"""A model for each request: chosen by a function, by the size or the cost of the request, or by the answer of a small model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Self, TypeAlias, cast

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer, ChosenModel, RouteReport
from agentloop.contracts.can_use_mode import CanRenderRequest
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError, InferenceError, InvalidParameter
from agentloop.models.combined import CombinedInference, as_inferences
from agentloop.tools.signature import is_async
from agentloop.values.estimates import RequestSize
from agentloop.values.inference import InferenceDelta, InferenceOptions, InferenceRequest, InferenceResponse, Usage
from agentloop.values.messages import Message

_MAX_QUESTION = 4_000
_MAX_ANSWER_TOKENS = 1_000


@frozen(kw_only=True)
class Route:
    """The choice of a model.

    Attributes:
        name: the name of the model in the mapping of the `RoutedInference`.
        reason: why, for people.
        usage: the tokens that it took to find out; None for none.
    """

    name: str
    reason: str = ""
    usage: Usage | None = None


Choose: TypeAlias = Callable[[InferenceRequest], str | Route | Awaitable[str | Route]]
"""Returns the name of the model for a request, or a `Route`; plain or async. It depends on the request alone, so that an execution that is
recovered or replayed takes the same way."""


def _as_routes(routes: Mapping[str, CanInfer]) -> dict[str, CanInfer]:
    return dict(zip(routes, as_inferences(list(routes.values()), "RoutedInference"), strict=True))


@frozen(eq=False)
class RoutedInference(CombinedInference):
    """Passes each request to the model that a function chooses for it.

    The answer is recorded as that of any model, so that a recovered or replayed execution uses it again. Each choice is the event
    `ModelRouted`. A driver that chooses the mode itself chooses it for each model.

        small_first = RoutedInference(by_size({"small": 8_000}, otherwise="large"), {"small": small, "large": large})

    Attributes:
        choose: the function; see `by_size`, `by_cost` and `ByModel`.
        routes: the models by name. The first one stands for all where one has to, as for `model_name`.

    Raises:
        ConfigurationError: when there are no models.
        TypeError: when one is not an inference.
    """

    choose: Choose
    routes: Mapping[str, CanInfer] = field(converter=_as_routes)
    _report: RouteReport | None = field(default=None, kw_only=True, repr=False)

    @property
    def models(self) -> tuple[CanInfer, ...]:
        """The models, in the order of the mapping."""
        return tuple(self.routes.values())

    def with_models(self, models: Sequence[CanInfer]) -> Self:
        """Return a copy with these models in place of its own, in the same order."""
        return evolve(self, routes=dict(zip(self.routes, models, strict=True)))

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose models are bound to the scope, and the model that chooses, too."""
        bound = super().with_execution_scope(scope)
        choose: Any = self.choose
        if isinstance(choose, CanAcceptExecutionScope):
            choose = cast("Any", choose.with_execution_scope(scope.without_inferences()))
        return evolve(bound, choose=choose)

    def with_route_report(self, report: RouteReport) -> Self:
        """Return a copy that reports its choices, and those of its models."""
        return evolve(super().with_route_report(report), report=report)

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request as the chosen model receives it; as the first one does where only a model can choose."""
        chosen = self.models[0]
        choose: object = self.choose
        if callable(choose) and not is_async(choose):  # which may ask a model
            route = choose(request)
            name = route.name if isinstance(route, Route) else route
            chosen = self.routes.get(name, chosen) if isinstance(name, str) else chosen
        return chosen.render_request(request) if isinstance(chosen, CanRenderRequest) else request

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Call the chosen model.

        Raises:
            InferenceError: the error of that model, or of the one that chooses.
            InvalidParameter: the function has chosen a model that there is not.
            Exception: any error of the function.
        """
        route, model = await self._choose(request)
        return _with_usage(await model.infer(request), route)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Call the chosen model, and yield what it streams.

        Raises:
            InferenceError: the error of that model, or of the one that chooses.
            InvalidParameter: the function has chosen a model that there is not.
            Exception: any error of the function.
        """
        route, model = await self._choose(request)
        stream = model.stream(request)
        try:
            async for item in stream:
                yield _with_usage(item, route) if isinstance(item, InferenceResponse) else item
        finally:
            # Contracts require an async iterator only, which need not have `aclose`.
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    async def _choose(self, request: InferenceRequest) -> tuple[Route, CanInfer]:
        chosen = self.choose(request)
        if isawaitable(chosen):
            chosen = await chosen
        route = chosen if isinstance(chosen, Route) else Route(name=chosen)
        if route.name not in self.routes:
            raise InvalidParameter(
                f"there is no model {route.name!r:.100} to choose; there is {', '.join(self.routes)}"
            )
        if self._report is not None:
            self._report(ChosenModel(route.name, route.reason, int(route.usage is not None)))
        return route, self.routes[route.name]


def _with_usage(response: InferenceResponse, route: Route) -> InferenceResponse:
    return response if route.usage is None else evolve(response, usage=response.usage + route.usage)


# --- by numbers -------------------------------------------------------------------------------------------------------


def by_size(limits: Mapping[str, int], *, otherwise: str) -> Choose:
    """Choose the first model that a request fits into.

    Args:
        limits: the maximum number of tokens, as estimated from the length of a request, by the name of the model.
        otherwise: the model for larger requests.
    """

    def choose(request: InferenceRequest) -> Route:
        size = RequestSize().tokens(request)
        name = next((name for name, limit in limits.items() if size <= limit), otherwise)
        return Route(name=name, reason=f"about {size:,} tokens")

    return choose


def by_cost(prices: Mapping[str, float], *, at_most: float) -> Choose:
    """Choose the first model whose request costs no more than a sum; the last one if that of none does.

    Args:
        prices: the price of a million tokens of a request, in USD, by the name of the model, in order of preference.
        at_most: the sum, in USD.

    Raises:
        ConfigurationError: there are no prices.
    """
    if not prices:
        raise ConfigurationError("by_cost needs the price of at least one model")

    def choose(request: InferenceRequest) -> Route:
        tokens = RequestSize().tokens(request)
        costs = {name: tokens * price / 1_000_000 for name, price in prices.items()}
        name = next((name for name, cost in costs.items() if cost <= at_most), list(costs)[-1])
        return Route(name=name, reason=f"about ${costs[name]:.6f} for the request")

    return choose


# --- by a model -------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class ByModel(CanAcceptExecutionScope):
    """Lets a small model choose, by what the user asks for.

    It reads the beginning of the last message of the user, without tools. Where its answer names no model, or it fails, `otherwise` is
    taken: a choice is never worth a failed execution.

    Attributes:
        inference: the small model.
        models: what each model is for, in words, by its name in the `RoutedInference`.
        otherwise: the name of the model for everything else.
    """

    inference: CanInfer
    models: Mapping[str, str]
    otherwise: str

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose model is bound to the scope."""
        if not isinstance(self.inference, CanAcceptExecutionScope):
            return self
        return evolve(self, inference=self.inference.with_execution_scope(scope))

    async def __call__(self, request: InferenceRequest) -> Route:
        """Choose the model for a request."""
        asked = next((message.text for message in reversed(request.messages) if message.role == "user"), "")
        listed = "\n".join(f"- {name}: {purpose}" for name, purpose in self.models.items())
        prompt = f"Which of these suits the task best? Answer with its name alone.\n{listed}"
        question = InferenceRequest(
            (Message.user(f"The task:\n{asked[:_MAX_QUESTION]}"),),
            prompt,
            options=InferenceOptions(max_tokens=_MAX_ANSWER_TOKENS),
        )
        try:
            response = await self.inference.infer(question)
        except InferenceError as error:
            return Route(name=self.otherwise, reason=f"the model that chooses failed: {error}", usage=Usage())
        return _read_choice(response, self.models, self.otherwise)


def _read_choice(response: InferenceResponse, models: Mapping[str, str], otherwise: str) -> Route:
    """Return the model that an answer names: as the whole answer, or as the only one in it."""
    text = response.text.strip().strip("`'\"*.").casefold()
    named = [name for name in models if name.casefold() == text] or [name for name in models if name.casefold() in text]
    if len(named) == 1:
        return Route(name=named[0], reason="a model chose it", usage=response.usage)
    return Route(name=otherwise, reason=f"the model that chooses answered {text[:80]!r}", usage=response.usage)
