// All that is recorded of one node.

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { CallActions, ForkForm } from "./actions";
import { Diff, Fold, Inline, JsonText, JsonValue, Text } from "./content";
import { Icon } from "./icon";
import { prettyText, printJson } from "./json";
import { FLAGS, labelOf, messageAt, statusOfCall, type CallNode, type Flag, type InferenceNode, type StepNode, type TraceNode, type TraceTree } from "./model";
import { Parts } from "./parts";
import type { Server } from "./server";
import { clock, count, dollars, duration, whole } from "./text";
import type { Json, TraceChange, TraceError, TraceExecution, TracePart, TraceStop, TraceUsage } from "./trace";

export interface DetailProps {
  readonly tree: TraceTree;
  readonly node: TraceNode;
  readonly server: Server | null;
  /** The text that a running inference has written so far. */
  readonly draft: string;
  readonly onSelect: (id: string) => void;
  readonly onClose: () => void;
}

const KIND_WORDS: Readonly<Record<TraceNode["kind"], string>> = {
  execution: "execution",
  step: "step",
  inference: "inference",
  call: "call",
  mark: "event",
  pending: "inference",
};

/** The pane with all that is recorded of the selected node. */
export function Detail(props: DetailProps): JSX.Element {
  const { node, tree, onSelect } = props;
  const { title } = labelOf(node);
  return (
    <article class="detail" aria-label={`details of ${title}`}>
      <header class="detail-head">
        <div class="crumbs">
          {pathTo(node).map((above) => (
            <button key={above.id} type="button" class="link" onClick={() => onSelect(above.id)}>
              {labelOf(above).title}
            </button>
          ))}
        </div>
        <h2>
          <span class={`kind ${node.kind}`} aria-hidden="true" />
          <span class="muted">{KIND_WORDS[node.kind]}</span> {title}
          <button type="button" class="icon close" aria-label="close details" onClick={props.onClose}>
            <Icon name="close" />
          </button>
        </h2>
        <Badges node={node} />
      </header>
      <div class="detail-body">
        <Times node={node} tree={tree} />
        <Content {...props} />
        <Changes changes={node.changes} />
      </div>
    </article>
  );
}

function pathTo(node: TraceNode): TraceNode[] {
  const path: TraceNode[] = [];
  for (let above = node.parent; above !== null; above = above.parent) path.unshift(above);
  return path;
}

function Badges({ node }: { readonly node: TraceNode }): JSX.Element {
  return (
    <div class="badges">
      {statusOf(node) === "" ? null : <span class={`badge status-${statusOf(node)}`}>{statusOf(node).replaceAll("_", " ")}</span>}
      {node.flags.filter((flag) => !isSaid(node, flag)).map((flag) => (
        <span key={flag} class={`badge ${flag}`} title={FLAGS[flag].says}>
          <Icon name={flag} /> {FLAGS[flag].word}
        </span>
      ))}
    </div>
  );
}

/** Whether the status of a node says what a flag says. */
function isSaid(node: TraceNode, flag: Flag): boolean {
  const status = statusOf(node);
  return status !== "" && (flag === "failed" || flag === "blocked" || flag === "waiting" || flag === "interrupted" || (flag === "doubt" && status === "in_doubt"));
}

function statusOf(node: TraceNode): string {
  if (node.kind === "execution") return node.execution.status;
  if (node.kind === "call") return statusOfCall(node.data, node.execution);
  if (node.kind === "step") return node.data.status;
  return "";
}

function Times({ node, tree }: { readonly node: TraceNode; readonly tree: TraceTree }): JSX.Element {
  const { start, end } = node;
  return (
    <Facts
      facts={[
        ["Started", start === null ? "not started" : clock(start)],
        ["After", start === null ? "" : duration(start - tree.start)],
        ["Took", start === null || end === null ? "" : duration(end - start)],
      ]}
    />
  );
}

type Fact = readonly [name: string, value: ComponentChildren];

/** Names with their values; those without a value are left out. */
function Facts({ facts }: { readonly facts: readonly Fact[] }): JSX.Element {
  return (
    <dl class="facts">
      {facts
        .filter(([, value]) => value !== "" && value !== null && value !== undefined)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{typeof value === "string" ? <Inline value={value} /> : value}</dd>
          </div>
        ))}
    </dl>
  );
}

function Content(props: DetailProps): JSX.Element {
  const { node } = props;
  switch (node.kind) {
    case "execution":
      return <ExecutionContent {...props} />;
    case "step":
      return <StepContent {...props} node={node} />;
    case "inference":
      return <InferenceContent node={node} onSelect={props.onSelect} />;
    case "call":
      return <CallContent {...props} node={node} />;
    case "pending":
      return <WrittenSoFar text={props.draft} />;
    case "mark":
      return (
        <>
          <Facts facts={[["By", node.data.principal], ["Process down", node.data.downtime > 0 ? duration(node.data.downtime) : ""]]} />
          {node.data.text === "" ? null : <Text value={node.data.text} />}
        </>
      );
  }
}

// --- executions and steps ----------------------------------------------------------------------------------------------

function ExecutionContent({ node, server, tree, onSelect }: DetailProps): JSX.Element {
  const { execution } = node;
  const isFirst = execution.id === tree.root.execution.id;
  const forked = execution.forked_from;
  return (
    <>
      <Facts
        facts={[
          ["Id", execution.id],
          ["Name", execution.agent_name],
          ["Agent", execution.agent_id],
          ["Turn", execution.number > 1 ? whole(execution.number) : ""],
          ["Steps", whole(execution.steps.length)],
          ["Waited", execution.waited > 0 ? duration(execution.waited) : ""],
          ["Cost", execution.cost === null ? "" : dollars(execution.cost)],
          ["Forked from", forked === null ? "" : `${forked.execution_id}, step ${forked.step}, effects: ${forked.effects}`],
        ]}
      />
      <NextSteps node={node} onSelect={onSelect} tree={tree} />
      <Waiting node={node} onSelect={onSelect} tree={tree} />
      <Stop stop={execution.status === "completed" ? null : execution.stop} />
      <Errors errors={execution.errors} />
      <Fold title="Input" copy={() => execution.input}>
        <Text value={execution.input} />
      </Fold>
      {execution.output === "" ? null : (
        <Fold title="Answer" copy={() => execution.output}>
          <Text value={execution.output} />
        </Fold>
      )}
      <Usage usage={execution.usage} />
      <Fold title="Loop" isOpen={false}>
        <JsonValue value={execution.loop} />
      </Fold>
      {server !== null && isFirst && server.can("fork") && execution.steps.length > 0 ? (
        <ForkForm server={server} execution={execution} step={execution.steps.at(-1)?.number ?? 1} />
      ) : null}
    </>
  );
}

/** What is in doubt in an execution that was interrupted or ended early, and how to go on. */
function NextSteps({ node, tree, onSelect }: Pick<DetailProps, "node" | "tree" | "onSelect">): JSX.Element | null {
  const { execution } = node;
  const doubts = tree.nodes.filter((other): other is CallNode => other.kind === "call" && other.execution === execution && other.flags.includes("doubt"));
  const advice = node.parent === null ? ADVICE[execution.status] : undefined;
  if (doubts.length === 0 && advice === undefined) return null;
  return (
    <div class="note doubt">
      {advice === undefined ? null : (
        <p>
          {advice.says} <code>{advice.command(execution.id)}</code>
        </p>
      )}
      {doubts.length === 0 ? null : (
        <p>
          {count(doubts.length, "call")} may have had an effect without a known outcome. Look at what they change before you repeat them:{" "}
          {doubts.map((call) => (
            <button key={call.id} type="button" class="link" onClick={() => onSelect(call.id)}>
              {labelOf(call).title}{" "}
            </button>
          ))}
        </p>
      )}
    </div>
  );
}

interface Advice {
  readonly says: string;
  readonly command: (id: string) => string;
}

const ADVICE: Readonly<Partial<Record<TraceExecution["status"], Advice>>> = {
  interrupted: {
    says: "Its process ended before the execution did. To continue it from its records:",
    command: (id) => `agentloop runs resume ${id} MODULE:LOOP`,
  },
};

/** The calls of an execution that wait for a decision. */
function Waiting({ node, tree, onSelect }: Pick<DetailProps, "node" | "tree" | "onSelect">): JSX.Element | null {
  const waiting = tree.nodes.filter(
    (other): other is CallNode => other.kind === "call" && other.execution === node.execution && other.data.status === "waiting",
  );
  if (waiting.length === 0) return null;
  return (
    <Fold title={`Waiting for a decision: ${count(waiting.length, "call")}`}>
      {waiting.map((call) => (
        <p key={call.id}>
          <button type="button" class="link" onClick={() => onSelect(call.id)}>
            {labelOf(call).title}
          </button>{" "}
          <Inline value={call.data.pending?.reason ?? ""} />
        </p>
      ))}
    </Fold>
  );
}

function StepContent({ node, server, tree, draft }: DetailProps & { readonly node: StepNode }): JSX.Element {
  const { data, execution } = node;
  const message = data.message === null ? null : messageAt(execution, data.message);
  const canFork = server !== null && server.can("fork") && execution.id === tree.root.execution.id && data.status === "completed";
  return (
    <>
      <Facts facts={[["Model", data.model], ["Finish", data.finish_reason ?? ""], ["Kind", (data.kind ?? "").replaceAll("_", " ")]]} />
      <Errors errors={data.errors} />
      {draft === "" ? null : <WrittenSoFar text={draft} />}
      {message === null ? null : (
        <Fold title="Message">
          <Parts parts={message.parts} execution={execution} />
        </Fold>
      )}
      {data.discarded_calls.length === 0 ? null : (
        <Fold title="Started early and not used">
          {data.discarded_calls.map((call, index) => (
            <div key={index}>
              <b><Inline value={call.name} /></b> <JsonText text={call.arguments} />
            </div>
          ))}
        </Fold>
      )}
      <Usage usage={data.usage} />
      {canFork ? <ForkForm server={server} execution={execution} step={data.number} /> : null}
    </>
  );
}

/** What a model has written of a response that is not recorded yet. */
function WrittenSoFar({ text }: { readonly text: string }): JSX.Element {
  return (
    <Fold title="Being written">
      <div class="draft">{text === "" ? <p class="muted">Nothing has come yet, or the loop does not stream.</p> : <Text value={text} />}</div>
    </Fold>
  );
}

// --- inferences --------------------------------------------------------------------------------------------------------

function InferenceContent({ node, onSelect }: { readonly node: InferenceNode; readonly onSelect: (id: string) => void }): JSX.Element {
  const { data, execution } = node;
  return (
    <>
      <Facts
        facts={[
          ["Model", data.model],
          ["Purpose", data.purpose],
          ["Finish", data.finish_reason ?? ""],
          ["Requests sent", data.requests === 1 ? "" : `${data.requests}: ${count(data.requests - 1, "retry", "retries")}`],
          ["Cost", data.cost === null ? "" : dollars(data.cost)],
          ["Response id", data.response_id],
        ]}
      />
      {data.is_superseded ? <p class="note">It was repeated after an interruption; a later inference counts.</p> : null}
      <Attempts node={node} />
      {data.error === null ? null : <Errors errors={[data.error]} />}
      <Stop stop={data.stop} />
      {data.problem === "" ? null : (
        <p class="note failed">
          The response could not be read: <Inline value={data.problem} />
        </p>
      )}
      {data.response === null ? null : (
        <Fold title="Response" copy={() => copyOf(data.response ?? [])}>
          <Parts parts={data.response} execution={execution} onSelect={onSelect} />
        </Fold>
      )}
      <Usage usage={data.usage} />
      <Request node={node} onSelect={onSelect} />
    </>
  );
}

/** The attempts that failed before the last one. */
function Attempts({ node }: { readonly node: InferenceNode }): JSX.Element | null {
  const { data } = node;
  if (data.attempts.length === 0) return null;
  let began = data.started_at;
  return (
    <Fold title={count(data.attempts.length, "failed attempt")}>
      <ol class="attempts">
        {data.attempts.map(({ error, ended_at, delay, instead }, index) => {
          const took = duration(ended_at - began);
          began = ended_at + delay;
          return (
            <li key={index}>
              <b><Inline value={error.type} /></b> <Inline value={error.message} />
              <span class="muted">
                {` after ${took}; ${instead === "" ? "tried again" : "asked "}`}
                {instead === "" ? null : <Inline value={instead} />}
                {delay > 0 ? ` after ${duration(delay)}` : " at once"}
              </span>
            </li>
          );
        })}
      </ol>
    </Fold>
  );
}

function copyOf(parts: readonly TracePart[]): string {
  return parts.map((part) => ("text" in part && part.type !== "call" ? part.text : printJson(part))).join("\n\n");
}

const FIRST_MESSAGES = 20;

/** The request as it went over the wire, as far as it is recorded. */
function Request({ node, onSelect }: { readonly node: InferenceNode; readonly onSelect: (id: string) => void }): JSX.Element {
  const { data, execution, newFrom } = node;
  const [showsAll, setShowsAll] = useState(false);
  const settings = execution.settings[data.settings];
  const rendering = data.rendering === null ? undefined : execution.renderings[data.rendering];
  const indexes = data.messages.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, place) => first + place));
  const fresh = indexes.filter((index) => index >= newFrom);
  const old = indexes.length - fresh.length;
  const seen = showsAll ? indexes : fresh;
  return (
    <Fold title="Request" aside={`${count(indexes.length, "message")}, ${whole(fresh.length)} new`}>
      {settings === undefined ? null : (
        <>
          {settings.system_prompt === "" ? null : (
            <Fold title="System prompt" aside={`${whole(settings.system_prompt.length)} characters`} isOpen={false} copy={() => settings.system_prompt}>
              <Text value={settings.system_prompt} />
            </Fold>
          )}
          <Fold title="Tools" aside={settings.tools.length === 0 ? "none" : settings.tools.map(({ name }) => name).join(", ").slice(0, 80)} isOpen={false}>
            {settings.tools.map((tool, index) => (
              <div key={index} class="tool">
                <b class="code"><Inline value={tool.name} /></b> <span class="badge">{tool.effect}</span>
                <Text value={tool.description} />
                <JsonValue value={tool.parameters} />
              </div>
            ))}
          </Fold>
          <Fold title="Settings" isOpen={false}>
            <JsonValue value={settingsOf(settings)} />
          </Fold>
        </>
      )}
      {old > 0 ? (
        <button type="button" class="link" onClick={() => setShowsAll(!showsAll)}>
          {showsAll ? "Show only what is new" : `Show ${count(old, "earlier message")}`}
        </button>
      ) : null}
      <Messages indexes={seen} newFrom={newFrom} node={node} onSelect={onSelect} />
      {rendering === undefined ? null : (
        <Fold title="As the model receives it" aside="the mode rewrites the request" isOpen={false} copy={() => printJson(rendering.request)}>
          <JsonValue value={rendering.request} />
        </Fold>
      )}
    </Fold>
  );
}

function settingsOf(settings: { tool_choice: string; parallel_tool_calls: boolean | null; response_format: Json; options: { [name: string]: Json } }): Json {
  const { tool_choice, parallel_tool_calls, response_format, options } = settings;
  return { ...options, tool_choice, parallel_tool_calls, response_format };
}

interface MessagesProps {
  readonly indexes: readonly number[];
  readonly newFrom: number;
  readonly node: InferenceNode;
  readonly onSelect: (id: string) => void;
}

function Messages({ indexes, newFrom, node, onSelect }: MessagesProps): JSX.Element {
  const [shown, setShown] = useState(FIRST_MESSAGES);
  // The newest messages are those that a reader looks for.
  const seen = indexes.slice(-shown);
  return (
    <div class="request-messages">
      {seen.length < indexes.length ? (
        <button type="button" class="link" onClick={() => setShown(shown * 4)}>
          Show more of {count(indexes.length, "message")}
        </button>
      ) : null}
      {seen.map((index) => {
        const message = messageAt(node.execution, index);
        return (
          <div key={index} class={index >= newFrom ? "request-message new" : "request-message"}>
            <span class="role"><Inline value={message?.role ?? "not recorded"} /></span>
            {message === null ? null : <Parts parts={message.parts} execution={node.execution} onSelect={onSelect} />}
          </div>
        );
      })}
    </div>
  );
}

// --- calls -------------------------------------------------------------------------------------------------------------

function CallContent({ node, server, tree, onSelect }: DetailProps & { readonly node: CallNode }): JSX.Element {
  const { data } = node;
  const isRepeated = data.starts.length > 1;
  const isLost = data.status === "running" && node.execution.status !== "in_progress";
  const served = node.children.filter(({ kind }) => kind === "execution");
  return (
    <>
      <Facts
        facts={[
          ["Key", data.key],
          ["Id", data.id],
          ["Effect", data.effect ?? ""],
          ["Started", isRepeated ? data.starts.map(clock).join(", ") : ""],
          ["Answered", data.answered === "" ? "" : `${data.answered} by the fork, without running`],
          ["Outcome of", data.source],
        ]}
      />
      {data.status === "in_doubt" || data.may_have_run ? (
        <p class="note doubt">It may have had its effect: it was interrupted, and nobody knows whether it ran to its end.</p>
      ) : null}
      {isLost ? <p class="note doubt">It has started and has no outcome: its process has ended.</p> : null}
      <CallActions node={node} server={server} execution={tree.root.execution} />
      {data.status === "waiting" && data.pending !== null ? null : (
        <Fold title="Arguments" copy={() => data.arguments}>
          <JsonText text={data.arguments} />
        </Fold>
      )}
      <Result node={node} />
      <Decisions node={node} />
      <Stop stop={data.stop} />
      {served.length === 0 ? null : (
        <Fold title="Served by">
          {served.map(({ id, execution }) => (
            <p key={id}>
              <button type="button" class="link" onClick={() => onSelect(id)}>
                <Inline value={execution.id} />
              </button>
            </p>
          ))}
        </Fold>
      )}
      {data.requested === null ? null : (
        <Fold title="Changed arguments" aside="as the model made them, and as it ran">
          <Diff before={prettyText(data.requested)} after={prettyText(data.arguments)} />
        </Fold>
      )}
      {data.original === null ? null : (
        <Fold title="Changed outcome" aside="as the tool returned it, and as it was recorded">
          <Diff before={outcomeText(data.original)} after={outcomeText(data)} />
        </Fold>
      )}
    </>
  );
}

function outcomeText(outcome: { status: string; value: Json; content: TracePart[] | null; error: TraceError | null }): string {
  const { status, value, content, error } = outcome;
  const shown = error === null ? (typeof value === "string" ? value : printJson(value)) : `${error.type}: ${error.message}`;
  return [status, shown, ...(content ?? []).map((part) => (part.type === "text" ? part.text : printJson(part)))].join("\n");
}

function Result({ node }: { readonly node: CallNode }): JSX.Element | null {
  const { data, execution } = node;
  if (data.status === "waiting" || data.status === "running") return null;
  return (
    <>
      {data.error === null ? (
        <Fold title="Result" copy={() => (typeof data.value === "string" ? data.value : printJson(data.value))}>
          <JsonValue value={data.value} />
        </Fold>
      ) : (
        <Errors errors={[data.error]} />
      )}
      {data.traceback === "" ? null : (
        <Fold title="Traceback" aside="no model sees it" isOpen={false} copy={() => data.traceback}>
          <Text value={data.traceback} code />
        </Fold>
      )}
      {data.content === null ? null : (
        <Fold title="What the model sees" isOpen={data.value === null}>
          <Parts parts={data.content} execution={execution} />
        </Fold>
      )}
    </>
  );
}

function Decisions({ node }: { readonly node: CallNode }): JSX.Element | null {
  const { decisions } = node.data;
  if (decisions.length === 0) return null;
  return (
    <Fold title="Decisions">
      {decisions.map(({ at, kind, principal, detail }, index) => (
        <div key={index} class="decision">
          <b>{kind}</b> {principal === "" ? null : <>by <Inline value={principal} /></>} <span class="muted">{clock(at)}</span>
          {detail === null ? null : <JsonValue value={detail} />}
        </div>
      ))}
    </Fold>
  );
}

// --- what several kinds have -------------------------------------------------------------------------------------------

function Usage({ usage }: { readonly usage: TraceUsage }): JSX.Element | null {
  const { input_tokens, output_tokens, cached_input_tokens, cache_write_tokens, reasoning_tokens } = usage;
  if (input_tokens === null && output_tokens === null) return null;
  const tokens = (value: number | null): string => (value === null ? "" : whole(value));
  const share = input_tokens && cached_input_tokens !== null ? ` (${Math.round((100 * cached_input_tokens) / input_tokens)} %)` : "";
  return (
    <Facts
      facts={[
        ["Input tokens", tokens(input_tokens)],
        ["From cache", cached_input_tokens === null ? "" : tokens(cached_input_tokens) + share],
        ["Written to cache", cache_write_tokens ? tokens(cache_write_tokens) : ""],
        ["Output tokens", tokens(output_tokens)],
        ["Reasoning", reasoning_tokens ? tokens(reasoning_tokens) : ""],
      ]}
    />
  );
}

function Errors({ errors }: { readonly errors: readonly TraceError[] }): JSX.Element | null {
  if (errors.length === 0) return null;
  return (
    <>
      {errors.map(({ type, message, path }, index) => (
        <div key={index} class="note failed" role="note">
          <b><Inline value={type} /></b> {path === "" ? null : <span class="muted">at <Inline value={path} /></span>}
          <Text value={message} />
        </div>
      ))}
    </>
  );
}

function Stop({ stop }: { readonly stop: TraceStop | null }): JSX.Element | null {
  if (stop === null) return null;
  return (
    <div class="note">
      <b>Stopped: <Inline value={stop.reason.replaceAll("_", " ")} /></b> {stop.principal === "" ? null : <>by <Inline value={stop.principal} /></>}{" "}
      <span class="muted"><Inline value={stop.source} /></span>
      {stop.message === "" ? null : <Text value={stop.message} />}
    </div>
  );
}

/** What interceptors changed, each as a difference. */
function Changes({ changes }: { readonly changes: readonly TraceChange[] }): JSX.Element | null {
  if (changes.length === 0) return null;
  return (
    <Fold title={changes.length === 1 ? "A change on the way" : `${changes.length} changes on the way`}>
      {changes.map((change, index) => (
        <div key={index} class="change">
          <div>
            <b>{change.by === "" ? "changed" : <Inline value={change.by} />}</b>{" "}
            <span class="muted">
              <Inline value={[change.point, change.path].filter(Boolean).join(" · ")} />
            </span>
          </div>
          <Diff before={prettyText(change.before ?? "")} after={prettyText(change.after ?? "")} />
        </div>
      ))}
    </Fold>
  );
}
