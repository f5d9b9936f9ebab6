// The page: what is shown, what the reader has chosen, and the keyboard.

import type { JSX } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { RunActions } from "./actions";
import { Compare } from "./compare_view";
import { Inline, Matcher } from "./content";
import { Conversation } from "./conversation";
import { Curves } from "./curves";
import { Detail } from "./detail";
import { Icon } from "./icon";
import { ALL_FLAGS, FLAGS, agentName, buildTree, type Flag, type TraceNode, type TraceTree } from "./model";
import { NOTHING_FOUND, searchNodes, type SearchState } from "./search";
import type { Server } from "./server";
import { count, dollars, duration, firstLine, matcherOf, short, whole } from "./text";
import type { Trace, TraceComparison } from "./trace";
import {
  applyTheme,
  flagged,
  foldAll,
  isOpen,
  nextFlagged,
  rowsOf,
  storedTheme,
  unfoldedTo,
  type Folds,
  type Tab,
  type Theme,
} from "./view_state";
import { Waterfall } from "./waterfall";

/** How the page stands to a live execution. */
export type Connection = "none" | "connected" | "ended" | "waiting" | "refused";

/** The text that an inference has written so far, before anything of it is recorded. */
export interface Draft {
  readonly step: number;
  readonly attempt: number;
  readonly text: string;
}

interface AppProps {
  readonly trace: Trace;
  /** A number that grows with each patch. */
  readonly version: number;
  readonly comparison: TraceComparison | null;
  readonly server: Server | null;
  readonly connection: Connection;
  /** What running inferences have written so far, by execution. */
  readonly drafts: ReadonlyMap<string, Draft>;
}

const TABS: readonly { tab: Tab; word: string }[] = [
  { tab: "timeline", word: "Timeline" },
  { tab: "conversation", word: "Conversation" },
  { tab: "curves", word: "Charts" },
  { tab: "compare", word: "Compare" },
];

/** The page of one trace. */
export function App(props: AppProps): JSX.Element {
  const { trace, version, comparison, server, connection, drafts } = props;
  const tree = useMemo(() => buildTree(trace), [trace, version]);
  const [tab, setTab] = useState<Tab>(comparison === null ? "timeline" : "compare");
  const [selectedId, setSelectedId] = useState(tree.root.id);
  const [reveal, setReveal] = useState(0);
  const [folds, setFolds] = useState<Folds>(new Map());
  const [filters, setFilters] = useState<ReadonlySet<Flag>>(new Set());
  const [onlyFound, setOnlyFound] = useState(false);
  const [showsDetail, setShowsDetail] = useState(true);
  const [showsHelp, setShowsHelp] = useState(false);
  const [follows, setFollows] = useState(trace.is_live && server !== null);
  const [theme, setTheme] = useState<Theme>(storedTheme);
  const search = useSearch(tree);
  const searchBox = useRef<HTMLInputElement>(null);
  const now = useNow(trace.is_live && connection === "connected");
  useEffect(() => applyTheme(theme), [theme]);
  const { status } = tree.root.execution;
  useEffect(() => {
    const { execution } = tree.root;
    document.title = `${agentName(execution)}: ${firstLine(execution.input, 60)} (${status.replaceAll("_", " ")})`;
  }, [status]);

  const wanted = useMemo(() => wantedIds(tree, filters, onlyFound && search.matcher !== null ? search.state.ids : null), [tree, filters, onlyFound, search.state]);
  const rows = useMemo(() => rowsOf(tree, folds, wanted), [tree, folds, wanted]);
  const selected = tree.byId.get(selectedId) ?? tree.root;

  const select = useCallback(
    (id: string) => {
      const node = tree.byId.get(id);
      if (node === undefined) return;
      setSelectedId(id);
      setFolds((old) => (hidden(node, old) ? unfoldedTo(node, old) : old));
      setReveal((old) => old + 1);
    },
    [tree],
  );
  const toggle = useCallback((node: TraceNode) => {
    setFolds((old) => new Map(old).set(node.id, !isOpen(node, old)));
  }, []);
  const moveTo = (place: number): void => {
    const node = rows.nodes[Math.min(Math.max(place, 0), rows.nodes.length - 1)];
    if (node !== undefined) select(node.id);
  };
  const nextFound = (direction: 1 | -1): void => {
    const id = search.next(selectedId, direction);
    if (id !== null) select(id);
  };
  const clear = (): void => {
    if (showsHelp) setShowsHelp(false);
    else if (search.query !== "") {
      search.setQuery("");
      setOnlyFound(false);
    } else if (filters.size > 0) setFilters(new Set());
    else setShowsDetail(false);
  };
  const place = rows.places.get(selected.id) ?? 0;
  const commands: Readonly<Record<string, () => void>> = {
    j: () => moveTo(place + 1),
    ArrowDown: () => moveTo(place + 1),
    k: () => moveTo(place - 1),
    ArrowUp: () => moveTo(place - 1),
    g: () => moveTo(0),
    Home: () => moveTo(0),
    G: () => moveTo(rows.nodes.length - 1),
    End: () => moveTo(rows.nodes.length - 1),
    PageDown: () => moveTo(place + 20),
    PageUp: () => moveTo(place - 20),
    l: () => (isOpen(selected, folds) ? moveTo(place + 1) : toggle(selected)),
    ArrowRight: () => (isOpen(selected, folds) ? moveTo(place + 1) : toggle(selected)),
    h: () => (selected.children.length > 0 && isOpen(selected, folds) ? toggle(selected) : select(selected.parent?.id ?? selected.id)),
    ArrowLeft: () => (selected.children.length > 0 && isOpen(selected, folds) ? toggle(selected) : select(selected.parent?.id ?? selected.id)),
    Enter: () => setShowsDetail(true),
    " ": () => toggle(selected),
    e: () => setFolds(foldAll(tree, false)),
    c: () => setFolds(foldAll(tree, true)),
    n: () => nextFound(1),
    N: () => nextFound(-1),
    x: () => select(nextFlagged(rows, place, 1)?.id ?? selected.id),
    X: () => select(nextFlagged(rows, place, -1)?.id ?? selected.id),
    f: () => setFollows(!follows),
    t: () => setTheme(nextTheme(theme)),
    "/": () => searchBox.current?.select(),
    "?": () => setShowsHelp(!showsHelp),
    Escape: clear,
    "1": () => setTab("timeline"),
    "2": () => setTab("conversation"),
    "3": () => setTab("curves"),
    "4": () => setTab(comparison === null ? tab : "compare"),
  };
  useKeyboard(commands);

  const draft = drafts.get(selected.execution.id);
  return (
    <Matcher.Provider value={search.matcher}>
      <Header tree={tree} trace={trace} server={server} connection={connection} theme={theme} onTheme={() => setTheme(nextTheme(theme))} onHelp={() => setShowsHelp(true)} onSelect={select} />
      <nav class="toolbar" aria-label="views and search">
        <div class="tabs" role="tablist">
          {TABS.filter((entry) => entry.tab !== "compare" || comparison !== null).map((entry) => (
            <button key={entry.tab} type="button" role="tab" id={`tab-${entry.tab}`} aria-controls="view" aria-selected={tab === entry.tab} onClick={() => setTab(entry.tab)}>
              {entry.word}
            </button>
          ))}
        </div>
        <SearchBox search={search} box={searchBox} onNext={nextFound} onlyFound={onlyFound} onOnlyFound={(only) => { setOnlyFound(only); setReveal((old) => old + 1); }} />
        {tab === "timeline" ? <Filters tree={tree} filters={filters} onFilters={(chosen) => { setFilters(chosen); setReveal((old) => old + 1); }} /> : null}
        {trace.is_live && server !== null ? (
          <button type="button" class="chip" aria-pressed={follows} onClick={() => setFollows(!follows)} title="keep the newest row in view (f)">
            follow
          </button>
        ) : null}
      </nav>
      <main class={showsDetail && tab !== "compare" ? "panes" : "panes single"}>
        <section class="pane" id="view" role="tabpanel" aria-labelledby={`tab-${tab}`}>
          {tab === "timeline" ? (
            <Waterfall
              tree={tree}
              rows={rows}
              folds={folds}
              selected={selected.id}
              found={search.state.ids}
              now={now}
              follows={follows}
              isFiltered={wanted !== null}
              reveal={reveal}
              onSelect={(node) => {
                setShowsDetail(true);
                select(node.id);
              }}
              onToggle={toggle}
            />
          ) : tab === "conversation" ? (
            <Conversation tree={tree} node={selected} follows={follows} draft={draft?.text ?? ""} onSelect={select} />
          ) : tab === "curves" ? (
            <Curves tree={tree} onSelect={select} />
          ) : comparison !== null ? (
            <Compare tree={tree} comparison={comparison} />
          ) : null}
        </section>
        {showsDetail && tab !== "compare" ? (
          <>
            <Splitter />
            {/* A new one for each row, which begins at its top. */}
            <aside key={selected.id} class="pane side-pane" aria-label="details">
              <Detail tree={tree} node={selected} server={server} draft={draft?.step === selected.step ? draft.text : ""} onSelect={select} onClose={() => setShowsDetail(false)} />
            </aside>
          </>
        ) : null}
      </main>
      {showsHelp ? <Help onClose={() => setShowsHelp(false)} /> : null}
    </Matcher.Provider>
  );
}

function hidden(node: TraceNode, folds: Folds): boolean {
  for (let above = node.parent; above !== null; above = above.parent) if (!isOpen(above, folds)) return true;
  return false;
}

function wantedIds(tree: TraceTree, filters: ReadonlySet<Flag>, found: ReadonlySet<string> | null): ReadonlySet<string> | null {
  if (filters.size === 0) return found;
  const marked = flagged(tree, filters);
  return found === null ? marked : new Set([...marked].filter((id) => found.has(id)));
}

function nextTheme(theme: Theme): Theme {
  return theme === "system" ? "dark" : theme === "dark" ? "light" : "system";
}

// --- hooks -------------------------------------------------------------------------------------------------------------

interface Search {
  readonly query: string;
  readonly setQuery: (query: string) => void;
  readonly matcher: RegExp | null;
  readonly state: SearchState;
  /** Whether everything was looked at for this query. */
  readonly isDone: boolean;
  /** Return the id of the next node that was found, from a node on. */
  readonly next: (from: string, direction: 1 | -1) => string | null;
}

const TYPING_MS = 120;

function useSearch(tree: TraceTree): Search {
  const [query, setQuery] = useState("");
  const [settled, setSettled] = useState("");
  const [state, setState] = useState<SearchState>(NOTHING_FOUND);
  const [doneFor, setDoneFor] = useState("");
  useEffect(() => {
    const timer = setTimeout(() => setSettled(query), query === "" ? 0 : TYPING_MS);
    return () => clearTimeout(timer);
  }, [query]);
  const matcher = useMemo(() => matcherOf(settled), [settled]);
  useEffect(() => {
    if (matcher === null) {
      setState(NOTHING_FOUND);
      return;
    }
    // What an earlier query, or an earlier tree, has found is shown until something else is.
    return searchNodes(tree.nodes, matcher, (reported) => {
      setState(reported);
      if (reported.isDone) setDoneFor(settled);
    });
  }, [tree, matcher]);
  const order = useMemo(() => new Map(tree.nodes.map((node, place) => [node.id, place])), [tree]);
  const next = (from: string, direction: 1 | -1): string | null => {
    const { found } = state;
    if (found.length === 0) return null;
    const at = order.get(from) ?? 0;
    const places = found.map((id) => order.get(id) ?? 0);
    const after = direction === 1 ? places.findIndex((place) => place > at) : places.findLastIndex((place) => place < at);
    return found[after >= 0 ? after : direction === 1 ? 0 : found.length - 1] ?? null;
  };
  return { query, setQuery, matcher, state, isDone: doneFor === query, next };
}

/** The time, which moves on while something runs. */
function useNow(moves: boolean): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!moves) return;
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, [moves]);
  return now;
}

function useKeyboard(commands: Readonly<Record<string, () => void>>): void {
  const current = useRef(commands);
  current.current = commands;
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      const target = event.target as HTMLElement;
      const writes = target.matches("input, textarea, select");
      const acts = target.matches("button, summary, a, [role=separator]") && ["Enter", " ", "ArrowLeft", "ArrowRight"].includes(event.key);
      const scrolls = target.closest(".lines, .conversation, .side-pane") !== null && /^(Arrow|Page|Home|End| )/.test(event.key);
      if (event.key === "Escape" && writes) target.blur();
      if ((writes && event.key !== "Escape") || acts || scrolls) return;
      const command = current.current[event.key];
      if (command === undefined) return;
      event.preventDefault();
      command();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, []);
}

// --- the head of the page ----------------------------------------------------------------------------------------------

interface HeaderProps {
  readonly tree: TraceTree;
  readonly trace: Trace;
  readonly server: Server | null;
  readonly connection: Connection;
  readonly theme: Theme;
  readonly onTheme: () => void;
  readonly onHelp: () => void;
  readonly onSelect: (id: string) => void;
}

const CONNECTIONS: Readonly<Record<Connection, string>> = {
  none: "",
  connected: "live",
  ended: "",
  waiting: "connection lost; trying again",
  refused: "the server refuses the stream",
};

function Header({ tree, trace, server, connection, theme, onTheme, onHelp, onSelect }: HeaderProps): JSX.Element {
  const { execution } = tree.root;
  const totals = totalsOf(trace);
  return (
    <header class="head">
      {server === null ? null : (
        <a class="home" href="/trace" title="all executions">
          <Icon name="back" />
        </a>
      )}
      <button type="button" class="link head-title" onClick={() => onSelect(tree.root.id)}>
        <h1>{agentName(execution)}</h1>
      </button>
      <span class={`badge status-${execution.status}`}>{execution.status.replaceAll("_", " ")}</span>
      {CONNECTIONS[connection] === "" ? null : (
        <span class={`connection ${connection}`} role="status">
          {CONNECTIONS[connection]}
        </span>
      )}
      <span class="head-input">
        <Inline value={execution.input.slice(0, 300)} />
      </span>
      <ul class="totals" aria-label="totals">
        <li>{count(execution.steps.length, "step")}</li>
        <li>{duration(tree.end - tree.start)}</li>
        {trace.executions.length > 1 ? <li>{count(trace.executions.length, "agent")}</li> : null}
        {totals.input === 0 ? null : (
          <li title={`${whole(totals.input)} tokens in, ${whole(totals.output)} out, with those of sub-agents`}>
            {short(totals.input)} › {short(totals.output)} tokens
          </li>
        )}
        {totals.cost === null ? null : <li>{dollars(totals.cost)}</li>}
      </ul>
      {server === null ? null : <RunActions server={server} execution={trace.executions[0] ?? execution} />}
      <button type="button" class="icon" aria-label={`theme: ${theme}`} title={`theme: ${theme} (t)`} onClick={onTheme}>
        <Icon name={theme} />
      </button>
      <button type="button" class="icon" aria-label="keyboard help" title="keyboard (?)" onClick={onHelp}>
        <Icon name="help" />
      </button>
    </header>
  );
}

/** The tokens and the cost of a trace, with those of sub-agents. */
function totalsOf(trace: Trace): { input: number; output: number; cost: number | null } {
  const totals = { input: 0, output: 0, cost: null as number | null };
  for (const { usage, cost } of trace.executions) {
    totals.input += usage.input_tokens ?? 0;
    totals.output += usage.output_tokens ?? 0;
    if (cost !== null) totals.cost = (totals.cost ?? 0) + cost;
  }
  return totals;
}

interface SearchBoxProps {
  readonly search: Search;
  readonly box: { current: HTMLInputElement | null };
  readonly onlyFound: boolean;
  readonly onNext: (direction: 1 | -1) => void;
  readonly onOnlyFound: (only: boolean) => void;
}

function SearchBox({ search, box, onlyFound, onNext, onOnlyFound }: SearchBoxProps): JSX.Element {
  const { query, state } = search;
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "Enter") {
      event.preventDefault();
      onNext(event.shiftKey ? -1 : 1);
    }
  };
  return (
    <div class="search" role="search">
      <input ref={box} type="search" placeholder="Search everything  /" aria-label="search" value={query} onInput={(event) => search.setQuery(event.currentTarget.value)} onKeyDown={onKey} spellcheck={false} />
      {query === "" ? null : (
        <>
          <output class="muted" aria-live="polite">
            {whole(state.found.length)}
            {search.isDone ? "" : " …"} found
          </output>
          <button type="button" class="chip" aria-pressed={onlyFound} onClick={() => onOnlyFound(!onlyFound)}>
            only these
          </button>
        </>
      )}
    </div>
  );
}

interface FiltersProps {
  readonly tree: TraceTree;
  readonly filters: ReadonlySet<Flag>;
  readonly onFilters: (filters: ReadonlySet<Flag>) => void;
}

function Filters({ tree, filters, onFilters }: FiltersProps): JSX.Element {
  const toggle = (flag: Flag): void => {
    const changed = new Set(filters);
    if (!changed.delete(flag)) changed.add(flag);
    onFilters(changed);
  };
  return (
    <div class="filters" role="group" aria-label="show only rows with">
      {ALL_FLAGS.filter((flag) => tree.flagCounts[flag] > 0).map((flag) => (
        <button key={flag} type="button" class={`chip ${flag}`} aria-pressed={filters.has(flag)} title={FLAGS[flag].says} onClick={() => toggle(flag)}>
          <Icon name={flag} /> {FLAGS[flag].word} <span class="chip-count">{short(tree.flagCounts[flag])}</span>
        </button>
      ))}
    </div>
  );
}

const MIN_SHARE = 20;
const MAX_SHARE = 75;

/** The line between both panes, which the mouse and the arrow keys move. */
function Splitter(): JSX.Element {
  const [share, setShare] = useState(42);
  const set = (value: number): void => {
    const bounded = Math.min(Math.max(value, MIN_SHARE), MAX_SHARE);
    document.documentElement.style.setProperty("--detail-share", `${bounded}%`);
    setShare(bounded);
  };
  const drag = (event: PointerEvent): void => {
    const line = event.currentTarget as HTMLElement;
    line.setPointerCapture(event.pointerId);
    line.onpointermove = (move) => set(100 - (100 * move.clientX) / window.innerWidth);
    line.onpointerup = () => (line.onpointermove = null);
  };
  const onKey = (event: KeyboardEvent): void => {
    const by = { ArrowLeft: 4, ArrowRight: -4 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    set(share + by);
  };
  return (
    <div class="splitter" role="separator" aria-orientation="vertical" aria-label="width of the details" aria-valuenow={Math.round(share)} aria-valuemin={MIN_SHARE} aria-valuemax={MAX_SHARE} tabIndex={0} onPointerDown={drag} onKeyDown={onKey} />
  );
}

const KEYS: readonly (readonly [string, string])[] = [
  ["j  k", "next and previous row"],
  ["h  l", "fold and unfold; also the arrow keys"],
  ["g  G", "first and last row"],
  ["x  X", "next and previous row with a mark"],
  ["/", "search; Enter and Shift+Enter step through what is found"],
  ["n  N", "next and previous row that was found"],
  ["Enter", "show the details"],
  ["Esc", "close, or clear the search and the filters"],
  ["e  c", "open and fold all steps"],
  ["1 – 4", "timeline, conversation, charts, comparison"],
  ["f", "follow a running execution"],
  ["t", "theme: system, dark, light"],
];

function Help({ onClose }: { readonly onClose: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} class="help" aria-label="keyboard" onClose={onClose} onClick={(event) => event.target === dialog.current && onClose()}>
      <h2>Keyboard</h2>
      <dl>
        {KEYS.map(([keys, says]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{says}</dd>
          </div>
        ))}
      </dl>
      <h2>Marks</h2>
      <dl>
        {ALL_FLAGS.map((flag) => (
          <div key={flag}>
            <dt>
              <span class={`flag ${flag}`}><Icon name={flag} /></span> {FLAGS[flag].word}
            </dt>
            <dd>{FLAGS[flag].says}</dd>
          </div>
        ))}
      </dl>
      <button type="button" class="primary" onClick={onClose}>
        Close
      </button>
    </dialog>
  );
}
