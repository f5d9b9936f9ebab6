"""How far a run has come with its current step."""

from __future__ import annotations

from attrs import define


@define(eq=False)
class StepProgress:
    """How far the current step has come. A run begins a new one with each step that it prepares.

    What happens to a step is noted here before it is reported, since a listener may fail or be cancelled meanwhile: whatever
    completes the step afterwards repeats nothing.

    Attributes:
        in_step: whether a step was started and not completed.
        has_step: whether the state contains the step.
        is_evaluated: whether `ContinuationEvaluated` was emitted for the step.
        in_take_step: whether the run is taking the step. It completes the step itself then, also after an error.
        emitted_signals: how many of the step's stop signals were emitted.
    """

    in_step: bool = False
    has_step: bool = False
    is_evaluated: bool = False
    in_take_step: bool = False
    emitted_signals: int = 0
