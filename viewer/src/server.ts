// The server of the page: documents, the live stream, and what a reader can do.

import { parseExactly, printJson } from "./json";
import type { Trace, TraceComparison, TraceDelta, TraceServer } from "./trace";

const TOKEN_KEY = "agentloop-token";
const RETRY_MS = 1000;
const LONGEST_RETRY_MS = 15_000;

/** A summary of an execution in a list. */
export interface ListedExecution {
  readonly id: string;
  readonly agent_id: string;
  readonly agent_name: string;
  readonly status: string;
  readonly step_count: number;
  readonly input: string;
  readonly started_at: string;
  readonly updated_at: string;
}

/** A request that the server has refused, with what it says about that. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** A decision about a call that waits. */
export type DecisionBody =
  | { readonly kind: "approve"; readonly digest: string }
  | { readonly kind: "deny"; readonly digest: string; readonly reason: string }
  | { readonly kind: "answer"; readonly digest: string; readonly value: unknown }
  | { readonly kind: "edit"; readonly digest: string; readonly arguments: unknown };

/** What is told while a page follows an execution. */
export interface Follower {
  readonly onPatch: (patch: Trace) => void;
  readonly onDelta: (delta: TraceDelta) => void;
  /** Whether the stream is connected, ended, or on the way back after a failure. */
  readonly onState: (state: "connected" | "ended" | "waiting" | "refused") => void;
}

/** Decode a part of an address; one that is not encoded stays as it is. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Calls the server that has sent the page. */
export class Server {
  private token: string;
  /** The token that the address has brought to a tab without one. Anybody can write a link, so a person decides whether to use it. */
  offered = "";

  constructor(readonly settings: TraceServer) {
    this.token = sessionStorage.getItem(TOKEN_KEY) ?? "";
    const given = /[#&]token=([^&]*)/.exec(location.hash)?.[1];
    if (given === undefined) return;
    history.replaceState(history.state, "", location.pathname + location.search);
    if (this.token === "") this.offered = decoded(given);
  }

  get needsToken(): boolean {
    return this.settings.needs_token && this.token === "";
  }

  /** Keep a token for this tab; an empty one forgets it. */
  useToken(token: string): void {
    this.token = token;
    this.offered = "";
    if (token === "") sessionStorage.removeItem(TOKEN_KEY);
    else sessionStorage.setItem(TOKEN_KEY, token);
  }

  can(action: TraceServer["actions"][number]): boolean {
    return this.settings.actions.includes(action);
  }

  async list(after = ""): Promise<{ executions: ListedExecution[]; next: string | null }> {
    const cursor = after === "" ? "" : `&after=${encodeURIComponent(after)}`;
    return (await this.json(`/executions?limit=50${cursor}`)) as { executions: ListedExecution[]; next: string | null };
  }

  async trace(id: string): Promise<Trace> {
    return (await this.json(`${pathOf(id)}/trace`)) as Trace;
  }

  async comparison(id: string, other: string): Promise<TraceComparison> {
    return (await this.json(`${pathOf(id)}/trace/comparison?with=${encodeURIComponent(other)}`)) as TraceComparison;
  }

  async decide(id: string, decisions: Readonly<Record<string, DecisionBody>>): Promise<void> {
    await this.post(`${pathOf(id)}/decisions`, { decisions });
  }

  async send(id: string, message: string): Promise<void> {
    await this.post(`${pathOf(id)}/messages`, { message });
  }

  async stop(id: string, reason: string): Promise<void> {
    await this.post(`${pathOf(id)}/stop`, { reason });
  }

  /** Start a new execution from a step of this one, and return its id. */
  async fork(id: string, step: number, effects: string): Promise<string> {
    const answer = (await this.post(`${pathOf(id)}/forks`, { at_step: step, effects })) as { id: string };
    return answer.id;
  }

  /** Follow an execution from a cursor on, until the signal is aborted or the execution has ended. */
  async follow(id: string, cursor: string, follower: Follower, signal: AbortSignal): Promise<void> {
    let [at, wait] = [cursor, RETRY_MS];
    while (!signal.aborted) {
      try {
        const response = await this.fetch(`${pathOf(id)}/trace/events`, { headers: { "Last-Event-ID": at }, signal });
        if (response.status === 204) break;
        follower.onState("connected");
        wait = RETRY_MS;
        for await (const event of eventsOf(response)) {
          if (event.id !== "") at = event.id;
          if (event.name === "trace") {
            const patch = parseExactly(event.data) as Trace;
            follower.onPatch(patch);
            if (!patch.is_live) return follower.onState("ended");
          } else if (event.name === "delta") follower.onDelta(JSON.parse(event.data) as TraceDelta);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Refused && error.status < 500 && error.status !== 429) return follower.onState("refused");
      }
      if (signal.aborted) return;
      follower.onState("waiting");
      await pause(wait, signal);
      wait = Math.min(wait * 2, LONGEST_RETRY_MS);
    }
    if (!signal.aborted) follower.onState("ended");
  }

  private async json(path: string): Promise<unknown> {
    return parseExactly(await (await this.fetch(path)).text());
  }

  private async post(path: string, body: unknown): Promise<unknown> {
    const headers = { "Content-Type": "application/json" };
    const response = await this.fetch(path, { method: "POST", headers, body: printJson(body) });
    const text = await response.text();
    return text === "" ? null : JSON.parse(text);
  }

  private async fetch(path: string, options: RequestInit & { headers?: Record<string, string> } = {}): Promise<Response> {
    const headers = { ...options.headers, ...(this.token === "" ? {} : { Authorization: `Bearer ${this.token}` }) };
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (!response.ok) throw new Refused(response.status, await problemOf(response));
    return response;
  }
}

/** Return the path of an execution; its id may hold slashes. */
function pathOf(id: string): string {
  return `/executions/${id.split("/").map(encodeURIComponent).join("/")}`;
}

async function problemOf(response: Response): Promise<string> {
  try {
    const { detail } = (await response.json()) as { detail?: unknown };
    if (typeof detail === "string") return detail;
  } catch {
    return `the server has answered with ${response.status}`;
  }
  return `the server has answered with ${response.status}`;
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

interface StreamEvent {
  readonly id: string;
  readonly name: string;
  readonly data: string;
}

/** Yield the events of a stream (`text/event-stream`). */
async function* eventsOf(response: Response): AsyncGenerator<StreamEvent> {
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let chunks: string[] = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    chunks.push(value);
    // A large event comes in many pieces, which are joined only when one ends.
    if (!value.includes("\n")) continue;
    const lines = (rest + chunks.join("")).split(/\r?\n\r?\n/);
    chunks = [];
    rest = lines.pop() ?? "";
    for (const block of lines) {
      const event = parseEvent(block);
      if (event.data !== "") yield event;
    }
  }
}

function parseEvent(block: string): StreamEvent {
  const fields = { id: "", event: "message", data: [] as string[] };
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") fields.data.push(value);
    else if (name === "id" || name === "event") fields[name] = value;
  }
  return { id: fields.id, name: fields.event, data: fields.data.join("\n") };
}
