// Starts the page: in a file with the trace that is in it, served with what the server sends.

import { render, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { App, type Connection, type Draft } from "./app";
import { Inline } from "./content";
import { parseExactly } from "./json";
import { mergePatch } from "./model";
import { Refused, Server, type ListedExecution } from "./server";
import "./style.css";
import { clock, count, firstLine } from "./text";
import { TRACE_VERSION, type Trace, type TraceComparison, type TraceDelta, type TracePage } from "./trace";
import { applyTheme, focusFirst, storedTheme } from "./view_state";

const PATCH_MS = 150;

/** Show a text in place of a trace. */
function Notice({ title, text }: { readonly title: string; readonly text: string }): JSX.Element {
  return (
    <div class="notice" role="alert">
      <h1>{title}</h1>
      <p>
        <Inline value={text} />
      </p>
    </div>
  );
}

/** Return a trace that this page can read; raises an error for a newer one. */
function checkVersion(trace: Trace): Trace {
  if (trace.version <= TRACE_VERSION) return trace;
  throw new Error(`It has version ${trace.version}, and the page reads versions up to ${TRACE_VERSION}: make the page with a newer agentloop.`);
}

// --- a served page -----------------------------------------------------------------------------------------------------

interface Loaded {
  readonly trace: Trace;
  readonly comparison: TraceComparison | null;
}

/** The page of an execution that the server has, which is followed while it runs. */
function Served({ server }: { readonly server: Server }): JSX.Element {
  const [hasToken, setHasToken] = useState(!server.needsToken);
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [problem, setProblem] = useState("");
  const id = server.settings.execution_id;
  const fail = (error: unknown): void => {
    if (error instanceof Refused && error.status === 401) {
      server.useToken("");
      setHasToken(false);
    }
    setProblem(error instanceof Error ? error.message : String(error));
  };
  useEffect(() => {
    if (!hasToken || id === "") return;
    const load = async (): Promise<void> => {
      const other = new URLSearchParams(location.search).get("compare");
      const trace = checkVersion(await server.trace(id));
      setLoaded({ trace, comparison: other === null ? null : await server.comparison(id, other) });
    };
    load().catch(fail);
  }, [hasToken]);
  if (!hasToken) return <TokenForm server={server} problem={problem} onToken={() => { setProblem(""); setHasToken(true); }} />;
  if (id === "") return <ExecutionList server={server} problem={problem} onProblem={fail} />;
  if (loaded !== null) return <Live server={server} loaded={loaded} />;
  if (problem !== "") return <Notice title="The trace cannot be shown" text={problem} />;
  return <div class="notice muted">Loading …</div>;
}

function TokenForm({ server, problem, onToken }: { readonly server: Server; readonly problem: string; readonly onToken: () => void }): JSX.Element {
  const [token, setToken] = useState(server.offered);
  const submit = (event: Event): void => {
    event.preventDefault();
    server.useToken(token.trim());
    onToken();
  };
  return (
    <form class="notice" onSubmit={submit}>
      <h1>A token is needed</h1>
      {server.offered === "" ? null : (
        <p class="offered">The link of this page brings a token. Open the page with it only if you trust the sender: what you do here is done in the name of the token's owner.</p>
      )}
      <label>
        Token of this server
        <input ref={focusFirst} type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
      </label>
      <button type="submit" class="primary" disabled={token.trim() === ""}>
        Open
      </button>
      {problem === "" ? null : <p class="note failed" role="alert"><Inline value={problem} /></p>}
    </form>
  );
}

/** A trace to which patches are applied as they come. */
function Live({ server, loaded }: { readonly server: Server; readonly loaded: Loaded }): JSX.Element {
  const trace = useRef(loaded.trace);
  const drafts = useRef(new Map<string, Draft>());
  const [version, setVersion] = useState(0);
  const [connection, setConnection] = useState<Connection>("none");
  useEffect(() => {
    if (!trace.current.is_live) return;
    const controller = new AbortController();
    let timer = 0;
    // Patches that come together are shown together: a new tree is made a few times per second at most.
    const show = (): void => {
      if (timer !== 0) return;
      timer = window.setTimeout(() => {
        timer = 0;
        setVersion((old) => old + 1);
      }, PATCH_MS);
    };
    const onPatch = (patch: Trace): void => {
      trace.current = mergePatch(trace.current, patch);
      for (const { id, status, inferences } of patch.executions) {
        const step = drafts.current.get(id)?.step;
        const isRecorded = inferences.some((inference) => inference.step === step && inference.purpose === "");
        if (isRecorded || status !== "in_progress") drafts.current.delete(id);
      }
      show();
    };
    const onDelta = (delta: TraceDelta): void => {
      const { execution_id, kind, step, attempt, text, is_whole } = delta;
      const former = drafts.current.get(execution_id);
      const isSame = !is_whole && former?.step === step && former.attempt === attempt;
      if (kind === "text") drafts.current.set(execution_id, { step, attempt, text: isSame ? former.text + text : text });
      show();
    };
    void server.follow(trace.current.id, trace.current.cursor, { onPatch, onDelta, onState: setConnection }, controller.signal);
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, []);
  return <App trace={trace.current} version={version} comparison={loaded.comparison} server={server} connection={connection} drafts={drafts.current} />;
}

// --- the list ----------------------------------------------------------------------------------------------------------

interface ListProps {
  readonly server: Server;
  readonly problem: string;
  readonly onProblem: (error: unknown) => void;
}

function ExecutionList({ server, problem, onProblem }: ListProps): JSX.Element {
  const [executions, setExecutions] = useState<readonly ListedExecution[]>([]);
  const [next, setNext] = useState<string | null>("");
  const load = async (): Promise<void> => {
    const page = await server.list(next ?? "");
    setExecutions((old) => [...old, ...page.executions]);
    setNext(page.next);
  };
  useEffect(() => void load().catch(onProblem), []);
  return (
    <div class="list">
      <h1>Executions</h1>
      {problem === "" ? null : <p class="note failed" role="alert"><Inline value={problem} /></p>}
      <ul>
        {executions.map((execution) => (
          <li key={execution.id}>
            <a href={`/trace/${execution.id.split("/").map(encodeURIComponent).join("/")}`}>
              <span class={`badge status-${execution.status}`}>{execution.status.replaceAll("_", " ")}</span>
              <b>{firstLine(execution.input, 100) || execution.id}</b>
              <span class="muted">{execution.agent_name === "" ? null : <><Inline value={execution.agent_name} /> · </>}<Inline value={execution.id} /> · {count(execution.step_count, "step")} · {clock(Date.parse(execution.updated_at))}</span>
            </a>
          </li>
        ))}
      </ul>
      {executions.length === 0 && next === null ? <p class="muted">The journal holds no execution.</p> : null}
      {next === null || next === "" ? null : <button type="button" onClick={() => void load().catch(onProblem)}>Show more</button>}
    </div>
  );
}

// --- the start ---------------------------------------------------------------------------------------------------------

function Page(): JSX.Element {
  const text = document.getElementById("trace-data")?.textContent ?? "null";
  const page = parseExactly(text) as TracePage | null;
  if (page === null) return <Notice title="No trace" text="This is the page without a trace: `agentloop trace view` writes one with it." />;
  if (page.served !== null) return <Served server={new Server(page.served)} />;
  const { trace } = page;
  if (trace === null) return <Notice title="No trace" text="The file holds no trace." />;
  return <App trace={checkVersion(trace)} version={0} comparison={page.compare} server={null} connection="none" drafts={new Map()} />;
}

applyTheme(storedTheme());
const place = document.getElementById("app");
if (place !== null) {
  place.replaceChildren();
  try {
    render(<Page />, place);
  } catch (error) {
    render(<Notice title="The trace cannot be shown" text={error instanceof Error ? error.message : String(error)} />, place);
  }
}
