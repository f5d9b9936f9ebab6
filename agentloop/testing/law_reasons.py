"""What goes wrong where a law does not hold, for those who wonder why it is one; `agentloop laws N` shows it."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "Totality": "a call gets lost between the model and the tools, and nobody notices that it has no outcome.",
    "Pairing": "a provider refuses the whole conversation, because a call in it has no result.",
    "Immutability": "two executions, or a record and the state, share a value that one of them changes.",
    "Round trip": "a state that was stored is another one when it is read, or is read wrongly by an older program.",
    "Bounded": "a loop goes on and costs money after its limit.",
    "Accounting": "a bill differs from what was counted, and a budget holds by accident.",
    "Grammar": "a listener that waits for an end never gets one, or gets two.",
    "Determinism": "a run cannot be replayed, and a test fails one time in ten.",
    "Isolation": "one customer reads the data of another one.",
    "Finality": "the log says that a call succeeded, and the model is told that it failed.",
    "Fail closed": "a guard that crashes opens the door which it should keep.",
    "Driver equivalence": "an agent behaves differently when its model is offered tools in another way.",
    "Prefix stability": "each request misses the cache of the provider, and costs up to ten times as much.",
    "Effects": "a payment is made twice after a crash.",
    "Fold": "an execution goes on from another state than that in which it stopped.",
    "Decisions": "a call runs that nobody has approved, or by an approval of another call.",
    "Validity": "a tool gets arguments that it never said it takes.",
    "Secrets": "a key is in the log of everybody who can read logs.",
    "Tidiness": "a server runs out of tasks, threads or sockets after a day.",
    "Linearity": "a long conversation takes time by the square of its length.",
    "Rescue": "an error in one call loses the outcomes of the others, and they run again.",
    "Identity": "a change of one component is silently undone by another one.",
    "Whole answers": "half an answer runs half a batch, such as the deletion without the copy before it.",
    "Quotations": "a page that shows a call makes the agent run it.",
    "Facts": "a record says that a call ran which did not, so that nobody looks after the one that did.",
    "Cancellation": "a run that was stopped goes on, spends money and has effects.",
    "Points": "a guardrail sees some requests, and others pass beside it.",
    "Updates": "a rate limit or a balance loses what was added at the same time.",
    "Precedence": "an option that a caller sets has no effect, and nobody says so.",
    "Decoding": "the same answer is another one when the network cuts it into other pieces.",
    "Bounds": "a hostile input takes all memory or all time.",
    "Exclusion": "two processes continue one execution, and each makes its calls.",
    "Declarations": "a timeout or a policy stands in the code, and nothing applies it.",
    "Recognition": "a call that a model wrote is shown to the user as text, or is dropped.",
    "Testimony": "a model repeats a call that has had its effect, since nobody told it.",
    "Confinement": "a program that a model wrote reads the keys of the host.",
    "Transfer": "a file comes back with other bytes, or a failure looks like a success.",
    "Delivery": "one listener that raises silences the audit log.",
    "Keys": "a key that was withdrawn is used on, or a rotation needs a restart.",
    "Nesting": "a trace has spans without an end, and a permit that nobody returns lets every later call wait forever.",
}
"""One sentence for each law, by its name, after "without it"."""
