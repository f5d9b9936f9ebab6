from agentloop.evals.results import CaseNote as CaseNote
from agentloop.evals.results import EvalResult as EvalResult
from agentloop.evals.results import Score as Score
from agentloop.evals.results import Trial as Trial
