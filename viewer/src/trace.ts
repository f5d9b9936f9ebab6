/**
 * The document of a trace, as `agentloop.service.trace` writes it (agentloop/service/trace/document.py; a test compares the two).
 *
 * Conventions
 * - Times (`Millis`) are milliseconds since 1970 UTC, with fractions. Where a time is not recorded it is null.
 * - `sequence` of an entity is the number of the record of its execution that changed it last. A patch (see below) holds only
 *   the entities that changed; merge by the identity that is named at each interface, replace whole.
 * - Nothing is stored twice: requests and the conversation refer to `messages` by index ranges, messages refer to `calls` by key,
 *   requests refer to `settings` and `renderings` by index.
 * - Every text comes from models, tools and servers and is hostile: show it as text.
 */

export const TRACE_VERSION = 1;

export type Millis = number;
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** An inclusive run of indexes into a table: [first, last]. */
export type Range = [first: number, last: number];

/** What the script element `<script type="application/json" id="trace-data">` of a page holds. */
export interface TracePage {
  /** The trace; null when the page is served and fetches it. */
  trace: Trace | null;
  /** A second trace to show beside it; null without one. */
  compare: TraceComparison | null;
  /** Null in a file. */
  served: TraceServer | null;
}

/**
 * The page is served at `GET /trace/{id}` (and `GET /trace` shows the list). All addresses below are relative to the origin.
 * With `needs_token`, send `Authorization: Bearer <token>` with every request: ask the user, with that of the fragment
 * of the address (`#token=…`; remove it with history.replaceState) as a proposal, and keep it in sessionStorage. Streams: fetch(), not EventSource.
 *
 *   GET  /executions?limit=50&after=CURSOR        {executions: [{id, agent_id, agent_name, status, step_count, input, started_at, updated_at}], next}
 *   GET  /executions/{id}/trace                   Trace
 *   GET  /executions/{id}/trace/events            server-sent events; the header Last-Event-ID, or ?after=, takes a `cursor`.
 *                                                 event `trace`: data is a Trace with `is_patch`, id is its cursor;
 *                                                 event `delta`: data is TraceDelta (no id); comments are heartbeats.
 *                                                 The stream ends when the execution has ended; 204 if nothing is left.
 *   GET  /executions/{id}/trace/comparison?with=OTHER   TraceComparison
 *   POST /executions/{id}/decisions  {"decisions": {"<call key>": {"kind": "approve"|"deny"|"answer"|"edit", "digest": "…", "reason"|"value"|"arguments"}}}
 *   POST /executions/{id}/messages   {"message": "text"}
 *   POST /executions/{id}/stop       {"reason": "text"}
 *   POST /executions/{id}/forks      {"at_step": 3, "effects": "reuse"|"simulate"|"forbid"}  -> 201 {"id": "…", …}
 * Ids are put into paths as they are (encode each segment, keep the slashes). Problems are application/problem+json with `detail`.
 * Decisions, messages, stops and forks are for the first execution of the trace (`executions[0]`), not for sub-agents;
 * decisions about pending calls of sub-agents name the key of the inner call.
 */
export interface TraceServer {
  needs_token: boolean;
  /** The id of the execution to show; empty for the list. */
  execution_id: string;
  /** What the server can do; "decide" is missing when it has no loop to continue executions with. */
  actions: ("decide" | "send" | "stop" | "fork")[];
}

export interface Trace {
  version: number;
  /** The id of the execution, that of executions[0]. */
  id: string;
  /** Whether it holds only what changed after the cursor that was asked for. */
  is_patch: boolean;
  /** Opaque position: what to continue from. */
  cursor: string;
  /** Whether the execution can still change: it is not terminal. */
  is_live: boolean;
  /** The execution, then those of sub-agents that serve its calls, in order of id (find those of a call by `caller`). In a patch: the execution, and the changed ones of sub-agents. */
  executions: TraceExecution[];
}

/** Identity: id. In a patch all scalars are current, and the lists hold changed entries only. */
export interface TraceExecution {
  id: string;
  sequence: number;
  agent_id: string;
  /** The name of the agent; empty without one. */
  agent_name: string;
  principal: string;
  parent_agent_id: string | null;
  /** 1-based index among the executions of its agent (turns of a conversation). */
  number: number;
  /** The call that it serves; null for the first execution. */
  caller: { execution_id: string; key: string; attempt: number } | null;
  forked_from: { execution_id: string; step: number; effects: string } | null;
  status: "pending" | "in_progress" | "interrupted" | "suspended" | "completed" | "stopped" | "failed";
  /** How the loop was composed when it started: {driver, mode?, compiler, executor, tools: string[], interceptors: string[] (outermost first), …}. */
  loop: { [name: string]: Json };
  input: string;
  /** The final answer; empty without one. */
  output: string;
  started_at: Millis;
  /** The time of the last record. */
  updated_at: Millis;
  ended_at: Millis | null;
  /** Milliseconds for which it was suspended or its process was down. */
  waited: number;
  stop: TraceStop | null;
  errors: TraceError[];
  usage: TraceUsage;
  /** Dollars of all inferences whose price is known; null when that of none is. */
  cost: number | null;
  /** Whether a secret was masked in any record. */
  is_masked: boolean;
  steps: TraceStep[];
  inferences: TraceInference[];
  calls: TraceCall[];
  /** Table of messages, identity: index (append only). Messages that were replaced stay in it. */
  messages: TraceMessage[];
  /** The conversation as it grew: apply in order. Identity: sequence. */
  conversation: TraceConversationChange[];
  /** Table, identity: index. Requests refer to it: all of a request but its messages. */
  settings: TraceRequestSettings[];
  /** Table, identity: index. How the model receives requests when the mode rewrites them (a sample with short messages). */
  renderings: TraceRendering[];
  /** What else happened, in order. Identity: sequence (several can share one: then replace all of that sequence). */
  marks: TraceMark[];
  /** What interceptors changed. Identity: sequence, as marks. */
  changes: TraceChange[];
}

/** Identity: number. */
export interface TraceStep {
  number: number;
  sequence: number;
  /** "open" while it runs, or if it was interrupted. */
  status: "open" | "suspended" | "completed";
  kind: "tool_execution" | "final_response" | "error" | null;
  started_at: Millis;
  ended_at: Millis | null;
  /** The assistant message, index in messages. */
  message: number | null;
  model: string;
  finish_reason: string | null;
  usage: TraceUsage;
  errors: TraceError[];
  /** Calls that were started early and whose outcomes were not used. */
  discarded_calls: { name: string; arguments: string }[];
}

/** Identity: index. */
export interface TraceInference {
  index: number;
  sequence: number;
  step: number;
  /** What an interceptor made it for, such as "guardrail" or ""; empty for one of the driver. */
  purpose: string;
  /** Where it is not recorded: the time of what came before it (the start of the step, an outcome, an earlier inference). */
  started_at: Millis;
  ended_at: Millis;
  /** Requests that were sent for it, with failed ones: more than 1 means retries. */
  requests: number;
  /** The attempts that failed before the last one, in order, as far as they are recorded. */
  attempts: TraceAttempt[];
  usage: TraceUsage;
  /** Dollars; null if the price or the tokens are not known. */
  cost: number | null;
  model: string;
  finish_reason: string | null;
  response_id: string;
  /** Index in settings. */
  settings: number;
  /** Index in renderings; null when the model receives the request as it is. */
  rendering: number | null;
  /** The messages of the request: ranges of indexes in messages. */
  messages: Range[];
  /** Null when it failed. Calls in it are {type: "call", name, arguments, key: ""}: as the model made them. */
  response: TracePart[] | null;
  /** Why the response could not be parsed; empty if it could. */
  problem: string;
  error: TraceError | null;
  stop: TraceStop | null;
  /** Whether it was repeated after an interruption, so that a later one counts. */
  is_superseded: boolean;
  is_masked: boolean;
}

export interface TraceAttempt {
  /** When it failed. */
  ended_at: Millis;
  /** Milliseconds that were waited before the next attempt. */
  delay: number;
  error: TraceError;
  /** The model that was asked next, if it is another one; else "". */
  instead: string;
}

export interface TraceRequestSettings {
  index: number;
  sequence: number;
  system_prompt: string;
  tools: { name: string; description: string; parameters: Json; effect: string }[];
  tool_choice: string;
  parallel_tool_calls: boolean | null;
  response_format: Json;
  /** Model, temperature, … as far as they are set. */
  options: { [name: string]: Json };
}

export interface TraceRendering {
  index: number;
  sequence: number;
  request: Json;
}

/** Identity: key. */
export interface TraceCall {
  key: string;
  sequence: number;
  step: number;
  /** 0-based place among the calls of the step, or of the program. */
  index: number;
  /** The key of the call whose program made it; null for a call of the model. */
  parent: string | null;
  id: string;
  name: string;
  /** JSON text of the arguments with which it ran (or would run). May be malformed when it was rejected. */
  arguments: string;
  /** The arguments as the model made them, when an interceptor or a reviewer changed them; else null. */
  requested: string | null;
  effect: "pure" | "idempotent" | "effect" | null;
  /** "running": started, without an outcome (interrupted, if the execution is); "waiting": for a decision. */
  status:
    | "running" | "waiting"
    | "succeeded" | "failed" | "rejected" | "blocked" | "cancelled" | "timed_out" | "in_doubt";
  /** Each start that is recorded: more than one when it was repeated after an interruption. Empty: it never ran. */
  starts: Millis[];
  started_at: Millis | null;
  ended_at: Millis | null;
  /** The result as JSON; null unless it succeeded. */
  value: Json;
  /** What the model sees in place of the value, if that differs. */
  content: TracePart[] | null;
  error: TraceError | null;
  /** The call may have had an effect although it did not succeed. */
  may_have_run: boolean;
  /** The outcome as the tool returned it, when interceptors changed it; else null. */
  original: { status: string; value: Json; content: TracePart[] | null; error: TraceError | null } | null;
  /** How a fork answered it without running it: "reused", "simulated", "forbidden"; else "". */
  answered: string;
  /** The key of the call whose outcome was reused. */
  source: string;
  /** The traceback of the tool, when it raised an error and the call failed; else "". */
  traceback: string;
  stop: TraceStop | null;
  /** What it waits for; null when it does not wait. */
  pending: TracePending | null;
  /** Decisions that were used, in order. */
  decisions: TraceDecision[];
  is_masked: boolean;
}

export interface TracePending {
  reason: string;
  /** The call as text, with its defaults and every character visible: show it whole, as it is, before a decision. */
  rendering: string;
  /** Of the call and its rendering; to be sent with a decision. */
  digest: string;
  /** The key of the pending call that has to be settled first; empty if it waits for a decision. */
  waits_for: string;
  suspension: number;
  /** Pending calls of the sub-agent or program that serves it; decide about these instead when there are any. */
  inner: { key: string; name: string; arguments: string; reason: string; rendering: string; digest: string; waits_for: string }[];
}

export interface TraceDecision {
  at: Millis;
  kind: "approve" | "deny" | "answer" | "edit";
  principal: string;
  /** The reason of a denial; the value of an answer; the arguments of an edit; else null. */
  detail: Json;
}

/** Identity: index. */
export interface TraceMessage {
  index: number;
  sequence: number;
  role: string;
  parts: TracePart[];
}

export type TracePart =
  | { type: "text"; text: string }
  | { type: "reasoning"; text: string }
  /** A call; `key` names the entry of `calls`. `key` is "" for calls of earlier executions of the conversation and for bare calls of a response: then name and arguments are set. */
  | { type: "call"; key: string; name: string; arguments: string; status: string; text: string }
  /** `data` is base64, for images up to 1 MB; else null. */
  | { type: "media"; kind: "image" | "audio" | "document"; media_type: string; name: string; url: string; bytes: number; data: string | null }
  | { type: "provider"; wire_format: string; payload: Json };

export interface TraceConversationChange {
  sequence: number;
  step: number;
  /** The number of messages at the front that stay; less than before when messages were replaced or dropped. */
  keep: number;
  /** Indexes in messages that follow. */
  add: Range[];
}

export interface TraceMark {
  sequence: number;
  at: Millis;
  step: number;
  kind: "started" | "recovered" | "suspended" | "resumed" | "decision" | "message_sent" | "message_taken" | "ended";
  /** A text for people: the message, the kind of decision, the reason of the end. */
  text: string;
  /** The call that a decision is about; else "". */
  key: string;
  /** Who decided or sent; else "". */
  principal: string;
  /** Milliseconds for which the process was down, for "recovered"; else 0. */
  downtime: number;
}

/**
 * Something that was changed on its way. `by` is the interceptor, known where the loop records provenance
 * (AgentLoop(provenance="values")); else empty: then the change was found by comparing records.
 */
export interface TraceChange {
  sequence: number;
  step: number;
  by: string;
  /** The point, such as before_inference; empty when it is not known. */
  point: string;
  /** What changed: "arguments", "result", or a path such as state.context.system_prompt. */
  path: string;
  /** The key of the call; "" for others. */
  key: string;
  /** Texts (JSON where the value is JSON), or digests; null if there was nothing. */
  before: string | null;
  after: string | null;
}

export interface TraceUsage {
  /** All input, cached input included; null: unknown. */
  input_tokens: number | null;
  output_tokens: number | null;
  cached_input_tokens: number | null;
  cache_write_tokens: number | null;
  reasoning_tokens: number | null;
  requests: number;
}

export interface TraceError { type: string; message: string; path: string }
export interface TraceStop { reason: string; message: string; source: string; principal: string }

/** Text of an inference that is running, while a page follows it; discard it when a record of the step comes. */
export interface TraceDelta {
  execution_id: string;
  step: number;
  attempt: number;
  kind: "text" | "reasoning";
  text: string;
  /** Whether it holds all that was written of the attempt, as the first one does after a page is opened or connected again. */
  is_whole: boolean;
}

export interface TraceComparison {
  trace: Trace;
  /** The first place where the two differ; null when they do not. */
  divergence: TraceDivergence | null;
}

export interface TraceDivergence {
  /** The step; 0 before the first. */
  step: number;
  /** What differs: "input", "request", "response", "call", "outcome", "end". */
  what: string;
  /** The path in it, such as tools[1].description. */
  path: string;
  /** JSON of both sides, shortened around the difference; null: nothing there. */
  left: string | null;
  right: string | null;
  /** 0-based index of the inference or call within the step; null for others. */
  index: number | null;
}
