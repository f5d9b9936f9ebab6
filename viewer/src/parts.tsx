// The parts of a message or of a response.

import type { JSX } from "preact";
import { Fold, Inline, JsonText, JsonValue, Text } from "./content";
import { callNodeId } from "./model";
import { short } from "./text";
import type { TraceCall, TraceExecution, TracePart } from "./trace";

interface PartsProps {
  readonly parts: readonly TracePart[];
  readonly execution: TraceExecution;
  /** Called with the id of a call's node; without it, calls are shown in full. */
  readonly onSelect?: (id: string) => void;
}

const callsOf = new WeakMap<TraceExecution, Map<string, TraceCall>>();

/** Return a call of an execution by its key. */
function callOf(execution: TraceExecution, key: string): TraceCall | undefined {
  let calls = callsOf.get(execution);
  if (calls === undefined) {
    calls = new Map(execution.calls.map((call) => [call.key, call]));
    callsOf.set(execution, calls);
  }
  return calls.get(key);
}

/** Parts in their order; calls that follow each other are beside each other, since they run so. */
export function Parts({ parts, execution, onSelect }: PartsProps): JSX.Element {
  const groups: TracePart[][] = [];
  for (const part of parts) {
    const last = groups.at(-1);
    if (part.type === "call" && last?.[0]?.type === "call") last.push(part);
    else groups.push([part]);
  }
  return (
    <div class="parts">
      {groups.map((group, index) =>
        group[0]?.type === "call" ? (
          <div key={index} class="cards">
            {group.map((part, place) => (part.type === "call" ? <CallCard key={place} part={part} execution={execution} onSelect={onSelect} /> : null))}
          </div>
        ) : (
          <Part key={index} part={group[0] as TracePart} />
        ),
      )}
    </div>
  );
}

function Part({ part }: { readonly part: TracePart }): JSX.Element | null {
  switch (part.type) {
    case "text":
      return <Text value={part.text} />;
    case "reasoning":
      return (
        <Fold title="Reasoning" isOpen={part.text.length < 600}>
          <div class="reasoning">
            <Text value={part.text} />
          </div>
        </Fold>
      );
    case "media":
      return <Media part={part} />;
    case "provider":
      return (
        <Fold title={`For the provider (${part.wire_format})`} isOpen={false}>
          <JsonValue value={part.payload} />
        </Fold>
      );
    case "call":
      return null;
  }
}

const IMAGES = /^image\/(png|jpeg|gif|webp)$/;

function Media({ part }: { readonly part: TracePart & { type: "media" } }): JSX.Element {
  const source = part.data !== null && IMAGES.test(part.media_type) ? `data:${part.media_type};base64,${part.data}` : "";
  return (
    <figure class="media">
      {source === "" ? null : <img src={source} alt={part.name === "" ? "an image of the conversation" : part.name} />}
      <figcaption class="muted">
        {part.kind} <Inline value={[part.name, part.media_type, part.url].filter(Boolean).join(" · ")} /> {part.bytes > 0 ? `${short(part.bytes)}B` : ""}
      </figcaption>
    </figure>
  );
}

interface CardProps {
  readonly part: TracePart & { type: "call" };
  readonly execution: TraceExecution;
  readonly onSelect: ((id: string) => void) | undefined;
}

/** A call with its outcome. */
function CallCard({ part, execution, onSelect }: CardProps): JSX.Element {
  const call = part.key === "" ? undefined : callOf(execution, part.key);
  const status = call?.status ?? part.status;
  return (
    <div class={`card status-${status}`}>
      <div class="card-head">
        <span class="kind call" aria-hidden="true" />
        {call === undefined || onSelect === undefined ? (
          <b class="code"><Inline value={call?.name ?? part.name} /></b>
        ) : (
          <button type="button" class="link code" onClick={() => onSelect(callNodeId(call.key))}>
            <Inline value={call.name} />
          </button>
        )}
        {status === "" ? null : <span class={`badge status-${status}`}>{status.replaceAll("_", " ")}</span>}
      </div>
      <JsonText text={call?.arguments ?? part.arguments} />
      <Outcome call={call} text={part.text} />
    </div>
  );
}

function Outcome({ call, text }: { readonly call: TraceCall | undefined; readonly text: string }): JSX.Element | null {
  if (call?.error != null) {
    return (
      <div class="card-result failed">
        <Text value={`${call.error.type}: ${call.error.message}`} />
      </div>
    );
  }
  if (call?.status === "succeeded") {
    return (
      <div class="card-result">
        <JsonValue value={call.value} />
      </div>
    );
  }
  return text === "" ? null : (
    <div class="card-result">
      <Text value={text} code />
    </div>
  );
}
