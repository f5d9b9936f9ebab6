"""Every error that agentloop raises.

    AgentLoopError
    ├── ContractViolation          an implementation or a caller broke a contract
    ├── BoundExceeded              input would cause more work than `Bounds` allows
    ├── ConfigurationError         the setup of a loop, model or tool cannot work
    │   ├── InvalidParameter       a parameter has the wrong type or value
    │   ├── InvalidDependencies    the dependencies of an execution do not have the type that a tool declares
    │   ├── InvalidDescriptor      a file that describes tools or agents has mistakes
    │   ├── InvalidFile            a file that describes tools or agents cannot be parsed
    │   └── SandboxUnavailable     no sandbox can run here, or a limit cannot be enforced
    ├── DependenciesFailed         the function that makes the dependencies of a run raised an error
    ├── InterceptorFailed          an interceptor raised; the guarded operation was not performed
    ├── NotJson                    a value has no JSON form
    ├── InvalidDocument            data is not the JSON form of the expected value
    ├── ToolDefinitionError        a function or class cannot become a tool
    ├── ToolError                  a tool call did not succeed
    │   ├── UnknownTool
    │   ├── MalformedArguments
    │   ├── InvalidArguments
    │   ├── AskAgain               a tool, or a check of an answer, sends the model back with a reason
    │   ├── AgentsTooDeep
    │   ├── ToolBlocked
    │   ├── ToolTimedOut
    │   ├── ToolUnavailable
    │   ├── ToolInDoubt
    │   ├── ProgramFailed          a program of a model is invalid, raised an error or exceeded a limit
    │   └── ToolFailed
    ├── InferenceError             a request to a model failed
    │   ├── AuthenticationError
    │   ├── RateLimited
    │   ├── BadRequest
    │   │   ├── ContextLengthExceeded
    │   │   ├── ToolsNotSupported
    │   │   └── UnsupportedOption  the wire format of a model has no equivalent of an option
    │   ├── ProviderUnavailable
    │   └── InvalidResponse
    ├── InvalidOutput              a final answer does not have the required type
    ├── DecisionError              a decision does not match a pending call
    ├── DecisionExtractionError    the output of a model contains no decision that can be parsed
    ├── DecisionValidationError    the decisions of a model were parsed but cannot be used
    ├── InboxClosed                the execution has ended and accepts no messages
    ├── ExecutionError             an execution has no output
    │   ├── ExecutionFailed        an error ended it
    │   ├── ExecutionStopped       a limit or a request to stop ended it
    │   ├── ExecutionSuspended     calls wait for decisions
    │   └── NoOutput               a state has no final answer
    ├── ClusterError               work of a cluster was not done
    │   ├── WorkRefused            no worker can do it
    │   ├── WorkFailed             it could not be carried out
    │   ├── WorkDamaged            the row that holds it is not one that agentloop wrote
    │   ├── TooManyRecoveries      an execution ended its workers again and again
    │   ├── DatabaseUnavailable    the database of a cluster cannot be reached, is busy, or is full
    │   └── DatabaseLost           a worker could not reach its database for too long
    └── JournalError
        ├── UnknownExecution       no execution with this id is recorded
        ├── JournalConflict        another writer drives the execution, or has continued it
        ├── ClaimLost              this process lost the right to append to the execution
        ├── JournalCorrupt         records were changed, dropped, reordered or damaged
        ├── InferenceNotRecorded   calls have started for a response that is not recorded
        ├── JournalFull            no space is left
        ├── JournalBusy            another writer holds the lock
        └── SchemaTooNew           a newer version of agentloop wrote the document

Messages name the problem, its place and the remedy; attributes hold the data for programs. Errors with a value of the loop, such as `AgentStop` and
`CallSuspended`, are defined beside that value, and imported from here.
"""

from __future__ import annotations

from agentloop._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
