// A trace as a tree of nodes: executions, steps, inferences, calls, and what else happened.

import type {
  Json,
  Trace,
  TraceCall,
  TraceChange,
  TraceExecution,
  TraceInference,
  TraceMark,
  TraceMessage,
  TracePart,
  TraceStep,
} from "./trace";
import { ExactNumber } from "./json";
import { count, firstLine, short } from "./text";

// --- nodes -------------------------------------------------------------------------------------------------------------

/** What deserves a look: a node can have several. */
export type Flag = "failed" | "blocked" | "doubt" | "retried" | "changed" | "waiting" | "masked" | "recovered" | "interrupted";

/** The word for a flag, and what it says. */
export const FLAGS: Readonly<Record<Flag, { word: string; says: string }>> = {
  failed: { word: "failed", says: "failed, was rejected, was cancelled or took too long" },
  blocked: { word: "blocked", says: "was prevented by an interceptor, a rule or a person" },
  doubt: { word: "in doubt", says: "may have had its effect, and nobody knows" },
  retried: { word: "retried", says: "took more than one attempt" },
  changed: { word: "changed", says: "was changed by an interceptor or a reviewer" },
  waiting: { word: "waiting", says: "waits for a decision" },
  interrupted: { word: "interrupted", says: "had begun when its process ended; what it did is not recorded" },
  recovered: { word: "recovered", says: "continued after an interruption" },
  masked: { word: "masked", says: "holds a secret that was masked" },
};

export const ALL_FLAGS = Object.keys(FLAGS) as Flag[];

interface Common {
  readonly id: string;
  readonly execution: TraceExecution;
  readonly parent: TraceNode | null;
  readonly children: TraceNode[];
  readonly depth: number;
  readonly step: number;
  /** When it started and ended, in milliseconds since 1970; null where that is not known or has not happened. */
  readonly start: number | null;
  readonly end: number | null;
  readonly flags: readonly Flag[];
  readonly changes: readonly TraceChange[];
}

export interface ExecutionNode extends Common {
  readonly kind: "execution";
}
export interface StepNode extends Common {
  readonly kind: "step";
  readonly data: TraceStep;
}
export interface InferenceNode extends Common {
  readonly kind: "inference";
  readonly data: TraceInference;
  /** The messages from this index on are new in this request. */
  readonly newFrom: number;
}
export interface CallNode extends Common {
  readonly kind: "call";
  readonly data: TraceCall;
}
export interface MarkNode extends Common {
  readonly kind: "mark";
  readonly data: TraceMark;
}
/** An inference that is under way: nothing of it is recorded before its response. */
export interface PendingNode extends Common {
  readonly kind: "pending";
}
export type TraceNode = ExecutionNode | StepNode | InferenceNode | CallNode | MarkNode | PendingNode;

/** A tree of nodes with what is looked up in it. */
export interface TraceTree {
  readonly root: TraceNode;
  /** All nodes, parents before their children, in the order in which they are shown. */
  readonly nodes: readonly TraceNode[];
  readonly byId: ReadonlyMap<string, TraceNode>;
  /** How many nodes have each flag. */
  readonly flagCounts: Readonly<Record<Flag, number>>;
  readonly start: number;
  readonly end: number;
}

// --- documents ---------------------------------------------------------------------------------------------------------

/** Return a trace with a patch in it: entries of the same identity are replaced. The old one is used up. */
export function mergePatch(trace: Trace, patch: Trace): Trace {
  const executions = new Map(trace.executions.map((execution) => [execution.id, execution]));
  for (const changed of patch.executions) {
    const former = executions.get(changed.id);
    executions.set(changed.id, former === undefined ? changed : mergeExecution(former, changed));
  }
  const first = trace.executions[0]?.id;
  const ordered = [...executions.values()].sort((a, b) =>
    a.id === first ? -1 : b.id === first ? 1 : a.id < b.id ? -1 : 1,
  );
  return { ...trace, cursor: patch.cursor, is_live: patch.is_live, executions: ordered };
}

function mergeExecution(former: TraceExecution, changed: TraceExecution): TraceExecution {
  return {
    ...changed,
    steps: mergeBy(former.steps, changed.steps, (step) => step.number),
    inferences: mergeBy(former.inferences, changed.inferences, (inference) => inference.index),
    calls: mergeBy(former.calls, changed.calls, (call) => call.key),
    messages: mergeBy(former.messages, changed.messages, (message) => message.index),
    conversation: mergeBy(former.conversation, changed.conversation, (change) => change.sequence),
    settings: mergeBy(former.settings, changed.settings, (settings) => settings.index),
    renderings: mergeBy(former.renderings, changed.renderings, (rendering) => rendering.index),
    marks: replaceSequences(former.marks, changed.marks),
    changes: replaceSequences(former.changes, changed.changes),
  };
}

function mergeBy<Entry>(former: Entry[], changed: readonly Entry[], identity: (entry: Entry) => string | number): Entry[] {
  if (changed.length === 0) return former;
  const places = new Map<string | number, number>();
  // Most changes are at the end; only what lies before them is left out of the map.
  former.forEach((entry, place) => places.set(identity(entry), place));
  for (const entry of changed) {
    const place = places.get(identity(entry));
    if (place === undefined) {
      places.set(identity(entry), former.length);
      former.push(entry);
    } else former[place] = entry;
  }
  return former;
}

function replaceSequences<Entry extends { sequence: number }>(former: Entry[], changed: readonly Entry[]): Entry[] {
  if (changed.length === 0) return former;
  const replaced = new Set(changed.map(({ sequence }) => sequence));
  const kept = former.filter(({ sequence }) => !replaced.has(sequence));
  return [...kept, ...changed].sort((a, b) => a.sequence - b.sequence);
}

// --- the tree ----------------------------------------------------------------------------------------------------------

/** Return the tree of a trace. */
export function buildTree(trace: Trace): TraceTree {
  const builder = new TreeBuilder(trace);
  return builder.build();
}

class TreeBuilder {
  private readonly nodes: TraceNode[] = [];
  private readonly byId = new Map<string, TraceNode>();
  private readonly placed = new Set<string>();
  /** The executions that serve a call, by its key. */
  private readonly serving = new Map<string, TraceExecution[]>();

  constructor(private readonly trace: Trace) {
    for (const execution of trace.executions) {
      if (execution.caller !== null) add(this.serving, execution.caller.key, execution);
    }
  }

  build(): TraceTree {
    const first = this.trace.executions[0];
    if (first === undefined) throw new Error("the trace holds no execution");
    const root = this.addExecution(first, null);
    // An execution whose caller is not in the trace, as while a patch is on its way, is shown below the first one.
    for (const execution of this.trace.executions) if (!this.placed.has(execution.id)) this.addExecution(execution, root);
    const flagCounts = Object.fromEntries(ALL_FLAGS.map((flag) => [flag, 0])) as Record<Flag, number>;
    let [start, end] = [root.start ?? Infinity, root.end ?? first.updated_at];
    const ordered: TraceNode[] = [];
    const visit = (node: TraceNode): void => {
      ordered.push(node);
      for (const flag of node.flags) flagCounts[flag]++;
      if (node.start !== null) start = Math.min(start, node.start);
      end = Math.max(end, node.end ?? node.start ?? end);
      node.children.forEach(visit);
    };
    visit(root);
    return { root, nodes: ordered, byId: this.byId, flagCounts, start, end };
  }

  private add<Node extends TraceNode>(draft: Omit<Node, "children" | "depth">): Node {
    const parent = draft.parent as TraceNode | null;
    const node = { ...draft, children: [], depth: parent === null ? 0 : parent.depth + 1 } as unknown as Node;
    parent?.children.push(node);
    this.nodes.push(node);
    this.byId.set(node.id, node);
    return node;
  }

  private addExecution(execution: TraceExecution, parent: TraceNode | null): ExecutionNode {
    this.placed.add(execution.id);
    const node = this.add<ExecutionNode>({
      kind: "execution",
      id: executionNodeId(execution.id),
      execution,
      parent,
      step: parent?.step ?? 0,
      start: execution.started_at,
      end: execution.ended_at ?? (execution.status === "in_progress" ? null : execution.updated_at),
      flags: executionFlags(execution),
      changes: [],
    });
    const changes = groupChanges(execution);
    const steps = new Map<number, TraceNode>();
    for (const step of execution.steps) steps.set(step.number, this.addStep(execution, step, node, changes));
    this.addInferences(execution, node, steps, changes);
    this.addCalls(execution, node, steps, changes);
    this.addMarks(execution, node, steps);
    this.addPending(execution, node, steps);
    for (const child of [node, ...steps.values()]) child.children.sort(byStart);
    return node;
  }

  private addStep(execution: TraceExecution, step: TraceStep, parent: TraceNode, changes: Changes): StepNode {
    const own = changes.steps.get(step.number) ?? [];
    const flags: Flag[] = [];
    if (step.kind === "error" || step.errors.length > 0) flags.push("failed");
    if (own.length > 0) flags.push("changed");
    const id = `${execution.id}#${step.number}`;
    const [start, end] = [step.started_at, step.ended_at];
    return this.add<StepNode>({
      kind: "step", id, execution, parent, step: step.number, start, end, flags, changes: own, data: step,
    });
  }

  private addInferences(execution: TraceExecution, node: TraceNode, steps: ReadonlyMap<number, TraceNode>, changes: Changes): void {
    let newFrom = 0;
    for (const inference of execution.inferences) {
      const own = changes.inferences.get(inference.index) ?? [];
      this.add<InferenceNode>({
        kind: "inference",
        id: `${execution.id}#i${inference.index}`,
        execution,
        parent: steps.get(inference.step) ?? node,
        step: inference.step,
        start: inference.started_at,
        end: inference.ended_at,
        flags: inferenceFlags(inference, own),
        changes: own,
        data: inference,
        newFrom,
      });
      for (const [, last] of inference.messages) newFrom = Math.max(newFrom, last + 1);
    }
  }

  private addCalls(execution: TraceExecution, node: TraceNode, steps: ReadonlyMap<number, TraceNode>, changes: Changes): void {
    const pending = new Map<string, TraceCall[]>();
    const added = new Map<string, TraceNode>();
    const addOne = (call: TraceCall, parent: TraceNode): void => {
      const own = changes.calls.get(call.key) ?? [];
      const placed = this.add<CallNode>({
        kind: "call",
        id: callNodeId(call.key),
        execution,
        parent,
        step: call.step,
        start: call.started_at,
        end: call.ended_at,
        flags: callFlags(call, own, execution),
        changes: own,
        data: call,
      });
      added.set(call.key, placed);
      for (const served of this.serving.get(call.key) ?? []) if (!this.placed.has(served.id)) this.addExecution(served, placed);
      for (const inner of pending.get(call.key) ?? []) addOne(inner, placed);
      pending.delete(call.key);
    };
    for (const call of execution.calls) {
      const parent = call.parent === null ? (steps.get(call.step) ?? node) : added.get(call.parent);
      if (parent !== undefined) addOne(call, parent);
      else pending.set(call.parent ?? "", [...(pending.get(call.parent ?? "") ?? []), call]);
    }
    for (const orphans of [...pending.values()]) for (const call of orphans) addOne(call, steps.get(call.step) ?? node);
  }

  /** Add the inference that must be under way where an execution is in progress and no call of it runs. */
  private addPending(execution: TraceExecution, node: TraceNode, steps: ReadonlyMap<number, TraceNode>): void {
    const isBusy = execution.calls.some(({ status }) => status === "running");
    if (execution.status !== "in_progress" || isBusy) return;
    const open = execution.steps.at(-1);
    const parent = (open?.status === "open" ? steps.get(open.number) : undefined) ?? node;
    const step = parent === node ? (open?.number ?? 0) + 1 : parent.step;
    const start = execution.updated_at;
    this.add<PendingNode>({ kind: "pending", id: `${execution.id}#pending`, execution, parent, step, start, end: null, flags: [], changes: [] });
  }

  private addMarks(execution: TraceExecution, node: TraceNode, steps: ReadonlyMap<number, TraceNode>): void {
    execution.marks.forEach((mark, index) => {
      if (!SHOWN_MARKS.has(mark.kind)) return;
      const waits = mark.kind === "suspended";
      const next = waits ? execution.marks.slice(index).find(({ kind }) => kind === "resumed" || kind === "ended") : undefined;
      const flags: Flag[] = mark.kind === "recovered" ? ["recovered"] : [];
      const id = `${execution.id}#m${mark.sequence}.${index}`;
      const parent = steps.get(mark.step) ?? node;
      const start = mark.kind === "recovered" ? mark.at - mark.downtime : mark.at;
      const end = next?.at ?? mark.at;
      this.add<MarkNode>({ kind: "mark", id, execution, parent, step: mark.step, start, end, flags, changes: [], data: mark });
    });
  }
}

/** What is a row of its own: beginnings and ends are those of the execution, and decisions are shown with their calls. */
const SHOWN_MARKS: ReadonlySet<string> = new Set(["recovered", "suspended", "message_sent", "message_taken"]);

function byStart(a: TraceNode, b: TraceNode): number {
  const [left, right] = [a.start ?? Infinity, b.start ?? Infinity];
  if (left !== right) return left < right ? -1 : 1;
  const order = { step: 0, mark: 1, inference: 2, call: 3, execution: 4, pending: 5 };
  if (a.kind === "call" && b.kind === "call") return a.data.index - b.data.index;
  if (a.kind === "step" && b.kind === "step") return a.data.number - b.data.number;
  return order[a.kind] - order[b.kind];
}

export const executionNodeId = (id: string): string => `${id}#`;
export const callNodeId = (key: string): string => `call ${key}`;

// --- changes and flags -------------------------------------------------------------------------------------------------

interface Changes {
  readonly calls: ReadonlyMap<string, TraceChange[]>;
  readonly inferences: ReadonlyMap<number, TraceChange[]>;
  readonly steps: ReadonlyMap<number, TraceChange[]>;
}

function groupChanges(execution: TraceExecution): Changes {
  const calls = new Map<string, TraceChange[]>();
  const inferences = new Map<number, TraceChange[]>();
  const steps = new Map<number, TraceChange[]>();
  const bySequence = new Map(execution.inferences.map(({ sequence, index }) => [sequence, index]));
  for (const change of execution.changes) {
    const inference = bySequence.get(change.sequence);
    if (change.key !== "") add(calls, change.key, change);
    else if (inference !== undefined) add(inferences, inference, change);
    else add(steps, change.step, change);
  }
  return { calls, inferences, steps };
}

function add<Key, Entry>(groups: Map<Key, Entry[]>, key: Key, entry: Entry): void {
  const group = groups.get(key);
  if (group === undefined) groups.set(key, [entry]);
  else group.push(entry);
}

function executionFlags(execution: TraceExecution): Flag[] {
  return execution.status === "failed" ? ["failed"] : [];
}

function inferenceFlags(inference: TraceInference, changes: readonly TraceChange[]): Flag[] {
  const flags: Flag[] = [];
  if (inference.error !== null || inference.problem !== "") flags.push("failed");
  if (inference.requests > 1) flags.push("retried");
  if (changes.length > 0) flags.push("changed");
  if (inference.is_masked) flags.push("masked");
  return flags;
}

const FAILED = new Set(["failed", "rejected", "cancelled", "timed_out"]);

/** Return the status of a call, which is that of its record unless its process has ended before it. */
export function statusOfCall(call: TraceCall, execution: TraceExecution): TraceCall["status"] | "interrupted" {
  return call.status === "running" && execution.status !== "in_progress" ? "interrupted" : call.status;
}

function callFlags(call: TraceCall, changes: readonly TraceChange[], execution: TraceExecution): Flag[] {
  const flags: Flag[] = [];
  if (statusOfCall(call, execution) === "interrupted") flags.push("interrupted");
  if (FAILED.has(call.status)) flags.push("failed");
  if (call.status === "blocked") flags.push("blocked");
  if (call.status === "in_doubt" || (call.may_have_run && call.status !== "succeeded")) flags.push("doubt");
  if (call.status === "waiting") flags.push("waiting");
  if (call.starts.length > 1) flags.push("retried");
  if (changes.length > 0 || call.requested !== null || call.original !== null) flags.push("changed");
  if (call.is_masked) flags.push("masked");
  return flags;
}

// --- what nodes say ----------------------------------------------------------------------------------------------------

/** Return the title of a node and what stands beside it. */
export function labelOf(node: TraceNode): { title: string; aside: string } {
  switch (node.kind) {
    case "execution":
      return { title: agentName(node.execution), aside: withOutcome(firstLine(node.execution.input, 60), node.execution.output) };
    case "step": {
      const calls = node.children.filter(({ kind }) => kind === "call").length;
      return { title: `Step ${node.data.number}`, aside: calls > 0 ? count(calls, "call") : stepKind(node.data) };
    }
    case "inference":
      return { title: node.data.purpose || "model", aside: responseLine(node.data) };
    case "call":
      return { title: firstLine(node.data.name, 60), aside: withOutcome(firstLine(node.data.arguments, 60), outcomeOf(node.data)) };
    case "pending":
      return { title: "model", aside: "no response yet" };
    case "mark":
      return { title: MARK_WORDS[node.data.kind], aside: firstLine(node.data.text, 120) };
  }
}

function withOutcome(text: string, outcome: string): string {
  return outcome === "" ? text : `${text} › ${firstLine(outcome, 80)}`;
}

/** Return what a call has led to, as a text; empty while it has not. */
function outcomeOf({ status, value, content, error }: TraceCall): string {
  if (status === "waiting" || status === "running") return "";
  if (error !== null) return error.message;
  const texts = (content ?? []).flatMap((part) => (part.type === "text" ? [part.text] : []));
  if (texts.length > 0) return texts.join(" ");
  return typeof value === "string" ? value : value === null ? "" : JSON.stringify(value);
}

const MARK_WORDS: Readonly<Record<TraceMark["kind"], string>> = {
  started: "started",
  recovered: "recovered",
  suspended: "suspended",
  resumed: "resumed",
  decision: "decision",
  message_sent: "message sent",
  message_taken: "message taken",
  ended: "ended",
};

/** Return a name for the agent of an execution. */
export function agentName(execution: TraceExecution): string {
  if (execution.agent_name !== "") return firstLine(execution.agent_name, 60);
  // Ids that nobody has chosen are recognized by their beginning.
  return firstLine(execution.agent_id.replace(/\b([0-9a-f]{8})[0-9a-f]{16,}\b|_([0-9a-f]{8})[0-9a-f]{16,}/g, (_, bare, joined) => (joined === undefined ? bare : `_${joined}`)), 60);
}

function stepKind(step: TraceStep): string {
  if (step.status === "open") return "open";
  return step.kind === "final_response" ? "answer" : step.kind === "error" ? "error" : "";
}

function responseLine(inference: TraceInference): string {
  if (inference.error !== null) return firstLine(`${inference.error.type}: ${inference.error.message}`, 120);
  const parts = inference.response ?? [];
  const calls = parts.filter((part) => part.type === "call").map((part) => part.name);
  const text = parts.filter((part) => part.type === "text").map((part) => part.text).join(" ");
  return [calls.length > 0 ? `› ${firstLine(calls.join(", "), 80)}` : "", firstLine(text, 120)].filter(Boolean).join("  ");
}

/** Return the tokens of a node in a short form; empty if none are known. */
export function tokensOf(node: TraceNode): string {
  const usage =
    node.kind === "inference" || node.kind === "step" ? node.data.usage : node.kind === "execution" ? node.execution.usage : null;
  // The tokens of a step are known when it is complete.
  if (usage === null || usage.input_tokens === null || (node.kind === "step" && node.data.status === "open")) return "";
  return `${short(usage.input_tokens)} › ${short(usage.output_tokens ?? 0)}`;
}

/** Return the message of an index; null if it has not come yet. */
export function messageAt(execution: TraceExecution, index: number): TraceMessage | null {
  const message = execution.messages[index];
  if (message?.index === index) return message;
  return execution.messages.find((candidate) => candidate.index === index) ?? null;
}

// --- what is searched --------------------------------------------------------------------------------------------------

/** Yield all texts of a node that a search looks at. */
export function* textsOf(node: TraceNode): Generator<string> {
  for (const change of node.changes) {
    yield change.by;
    yield change.before ?? "";
    yield change.after ?? "";
  }
  switch (node.kind) {
    case "execution":
      yield node.execution.id;
      yield agentName(node.execution);
      yield node.execution.input;
      yield node.execution.output;
      for (const error of node.execution.errors) yield `${error.type}: ${error.message}`;
      break;
    case "step":
      for (const error of node.data.errors) yield `${error.type}: ${error.message}`;
      break;
    case "inference":
      yield* textsOfInference(node);
      break;
    case "call":
      yield* textsOfCall(node.data);
      break;
    case "mark":
      yield node.data.text;
      yield node.data.principal;
      break;
  }
}

function* textsOfInference(node: InferenceNode): Generator<string> {
  const { data, execution } = node;
  yield data.model;
  yield data.problem;
  if (data.error !== null) yield `${data.error.type}: ${data.error.message}`;
  for (const { error, instead } of data.attempts) yield `${error.type}: ${error.message} ${instead}`;
  for (const part of data.response ?? []) yield* textsOfPart(part);
  const first = node.newFrom === 0;
  if (first) yield execution.settings[data.settings]?.system_prompt ?? "";
  for (const [start, end] of data.messages) {
    for (let index = Math.max(start, node.newFrom); index <= end; index++) {
      const message = messageAt(execution, index);
      if (message !== null && message.role !== "assistant") for (const part of message.parts) yield* textsOfPart(part);
    }
  }
}

function* textsOfCall(call: TraceCall): Generator<string> {
  yield call.name;
  yield call.key;
  yield call.arguments;
  yield call.requested ?? "";
  yield* textsOfJson(call.value);
  for (const part of call.content ?? []) yield* textsOfPart(part);
  if (call.error !== null) yield `${call.error.type}: ${call.error.message}`;
  yield call.pending?.reason ?? "";
}

function* textsOfPart(part: TracePart): Generator<string> {
  switch (part.type) {
    case "text":
    case "reasoning":
      yield part.text;
      break;
    case "call":
      // A call with a key has a node of its own.
      if (part.key === "") yield `${part.name} ${part.arguments} ${part.text}`;
      break;
    case "media":
      yield part.name;
      break;
    case "provider":
      yield* textsOfJson(part.payload);
  }
}

function* textsOfJson(value: Json): Generator<string> {
  if (typeof value === "string") yield value;
  else if (Array.isArray(value)) for (const item of value) yield* textsOfJson(item);
  else if (value instanceof ExactNumber) yield value.source;
  else if (typeof value === "number") yield String(value);
  else if (value !== null && typeof value === "object") {
    for (const [name, item] of Object.entries(value)) {
      yield name;
      yield* textsOfJson(item);
    }
  }
}
