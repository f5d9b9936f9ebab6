// What a reader of a served page can do: decide, send a message, stop, fork.

import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";
import { CallText } from "./call_text";
import { Fold, Inline } from "./content";
import { ExactNumber, parseExactly } from "./json";
import { focusFirst } from "./view_state";
import type { CallNode } from "./model";
import type { DecisionBody, Server } from "./server";
import { escapeJson } from "./text";
import type { TraceExecution } from "./trace";

/** Return a function that does something, and what to show while it runs and when it has failed. */
function useAction(): readonly [run: (action: () => Promise<void>) => void, isBusy: boolean, problem: string] {
  const [isBusy, setIsBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const run = (action: () => Promise<void>): void => {
    setIsBusy(true);
    setProblem("");
    action()
      .catch((error: unknown) => setProblem(error instanceof Error ? error.message : String(error)))
      .finally(() => setIsBusy(false));
  };
  return [run, isBusy, problem];
}

function Problem({ text }: { readonly text: string }): JSX.Element | null {
  return text === "" ? null : (
    <p class="note failed" role="alert">
      <Inline value={text} />
    </p>
  );
}

// --- decisions ---------------------------------------------------------------------------------------------------------

interface CallActionsProps {
  readonly node: CallNode;
  readonly server: Server | null;
  /** The first execution of the trace, to which decisions are sent. */
  readonly execution: TraceExecution;
}

/** What a call waits for, the call as the server shows it, and the decisions about it. */
export function CallActions({ node, server, execution }: CallActionsProps): JSX.Element | null {
  const { pending } = node.data;
  if (pending === null || node.data.status !== "waiting") return null;
  const inner = pending.inner.filter(({ waits_for }) => waits_for === "");
  const canDecide = server !== null && server.can("decide") && pending.waits_for === "";
  return (
    <div class="note waiting">
      <b>Waits for {pending.waits_for === "" ? "a decision" : "another call"}</b>
      <p>
        <Inline value={pending.waits_for === "" ? pending.reason : pending.waits_for} />
      </p>
      {canDecide && inner.length === 0 ? (
        <DecisionForm key={pending.digest} call={{ ...pending, key: node.data.key, arguments: node.data.arguments }} server={server} execution={execution} />
      ) : (
        <CallText rendering={pending.rendering} />
      )}
      {pending.inner.map((call) => (
        <Fold key={call.key} title={call.name} aside={<Inline value={call.reason} />}>
          {canDecide && call.waits_for === "" ? (
            <DecisionForm key={call.digest} call={call} server={server} execution={execution} />
          ) : (
            <CallText rendering={call.rendering} />
          )}
        </Fold>
      ))}
      {server === null ? <p class="muted">Decide with `agentloop runs resume`, or on a page of `agentloop trace serve`.</p> : null}
      {server !== null && !server.can("decide") ? (
        <p class="muted">This server has no loop to continue the execution with; `agentloop serve` with one has.</p>
      ) : null}
    </div>
  );
}

interface DecisionProps {
  readonly call: { readonly key: string; readonly digest: string; readonly rendering: string; readonly arguments: string };
  readonly server: Server;
  readonly execution: TraceExecution;
}

type Kind = DecisionBody["kind"];

const KINDS: readonly { kind: Kind; word: string; label: string }[] = [
  { kind: "approve", word: "Approve", label: "" },
  { kind: "deny", word: "Deny", label: "Reason, which the model sees" },
  { kind: "answer", word: "Answer", label: "Result in place of running it: JSON, or text" },
  { kind: "edit", word: "Edit", label: "Arguments to run it with, as JSON" },
];

/** The call, and the decision about it, which can be sent when the end of the call was in view. */
function DecisionForm({ call, server, execution }: DecisionProps): JSX.Element {
  const [run, isBusy, problem] = useAction();
  const [isSeen, setIsSeen] = useState(false);
  const hint = useId();
  const [kind, setKind] = useState<Kind>("approve");
  const [text, setText] = useState("");
  const choose = (chosen: Kind): void => {
    setKind(chosen);
    setText(chosen === "edit" ? escapeJson(call.arguments) : "");
  };
  const chosen = KINDS.find((entry) => entry.kind === kind);
  const submit = (event: Event): void => {
    event.preventDefault();
    if (!isSeen) return;
    run(async () => {
      // What was pasted can hold what nobody sees.
      if (kind === "edit" && escapeJson(text) !== text) {
        setText(escapeJson(text));
        throw new Error("The arguments hold characters that cannot be seen. They are escapes now: look at them again.");
      }
      await server.decide(execution.id, { [call.key]: decisionOf(kind, call.digest, text) });
    });
  };
  return (
    <form class="decide" onSubmit={submit}>
      <CallText rendering={call.rendering} onSeen={() => setIsSeen(true)} />
      <p id={hint} class="muted" role="status">
        {isSeen ? `digest ${call.digest.slice(0, DIGEST_LENGTH)}` : "Scroll to the end of the call. It can be decided when its end was in view."}
      </p>
      <div class="choices" role="radiogroup" aria-label="decision">
        {KINDS.map((entry) => (
          <button key={entry.kind} type="button" role="radio" aria-checked={entry.kind === kind} onClick={() => choose(entry.kind)}>
            {entry.word}
          </button>
        ))}
      </div>
      {chosen === undefined || chosen.label === "" ? null : (
        <label>
          {chosen.label}
          <textarea rows={3} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      <button type="submit" class="primary" disabled={isBusy || !isSeen} aria-describedby={hint}>
        {isBusy ? "Sending …" : `${chosen?.word ?? ""} this call`}
      </button>
      <Problem text={problem} />
    </form>
  );
}

const DIGEST_LENGTH = 12;

/** Return a decision; raises an error for arguments that are not a JSON object. */
function decisionOf(kind: Kind, digest: string, text: string): DecisionBody {
  switch (kind) {
    case "approve":
      return { kind, digest };
    case "deny":
      return { kind, digest, reason: text };
    case "answer":
      return { kind, digest, value: parsedOr(text) };
    case "edit": {
      const value = parsedOr(text);
      if (value === null || typeof value !== "object" || Array.isArray(value) || value instanceof ExactNumber) throw new Error("The arguments are a JSON object.");
      return { kind, digest, arguments: value };
    }
  }
}

function parsedOr(text: string): unknown {
  try {
    return parseExactly(text);
  } catch {
    return text;
  }
}

// --- executions --------------------------------------------------------------------------------------------------------

interface ExecutionProps {
  readonly server: Server;
  readonly execution: TraceExecution;
}

/** Send a message to an execution that has not ended, or stop it. */
export function RunActions({ server, execution }: ExecutionProps): JSX.Element | null {
  const [run, isBusy, problem] = useAction();
  const [open, setOpen] = useState<"" | "send" | "stop">("");
  const [text, setText] = useState("");
  if (["completed", "stopped", "failed"].includes(execution.status)) return null;
  const submit = (event: Event): void => {
    event.preventDefault();
    run(async () => {
      await (open === "send" ? server.send(execution.id, text) : server.stop(execution.id, text));
      setOpen("");
      setText("");
    });
  };
  return (
    <div class="run-actions">
      {server.can("send") ? (
        <button type="button" aria-expanded={open === "send"} onClick={() => setOpen(open === "send" ? "" : "send")}>
          Message …
        </button>
      ) : null}
      {server.can("stop") ? (
        <button type="button" aria-expanded={open === "stop"} onClick={() => setOpen(open === "stop" ? "" : "stop")}>
          Cancel run …
        </button>
      ) : null}
      {open === "" ? null : (
        <form class="popup" onSubmit={submit}>
          <label>
            {open === "send" ? "Message to the agent" : "Reason, which is recorded"}
            <textarea ref={focusFirst} rows={3} value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
          <button type="submit" class="primary" disabled={isBusy || (open === "send" && text.trim() === "")}>
            {open === "send" ? "Send" : "Cancel the run"}
          </button>
          <Problem text={problem} />
        </form>
      )}
    </div>
  );
}

const EFFECTS = [
  ["simulate", "simulate them: no call with an effect runs"],
  ["reuse", "use recorded outcomes of equal calls; other calls run"],
  ["forbid", "block them, with an error for the model"],
] as const;

/** Start a new execution from a step of this one. */
export function ForkForm({ server, execution, step }: ExecutionProps & { readonly step: number }): JSX.Element {
  const [run, isBusy, problem] = useAction();
  const [effects, setEffects] = useState<string>("simulate");
  const fork = (event: Event): void => {
    event.preventDefault();
    run(async () => location.assign(`/trace/${(await server.fork(execution.id, step, effects)).split("/").map(encodeURIComponent).join("/")}`));
  };
  return (
    <Fold title="Fork from here" aside={`a new execution that starts after step ${step}`} isOpen={false}>
      <form class="decide" onSubmit={fork}>
        <label>
          Calls that may have an effect
          <select value={effects} onChange={(event) => setEffects(event.currentTarget.value)}>
            {EFFECTS.map(([value, words]) => (
              <option key={value} value={value}>
                {words}
              </option>
            ))}
          </select>
        </label>
        <button type="submit" class="primary" disabled={isBusy}>
          Fork after step {step}
        </button>
        <Problem text={problem} />
      </form>
    </Fold>
  );
}
