// The waterfall: a row for each node, with a bar for its time.

import type { JSX } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Icon } from "./icon";
import { FLAGS, labelOf, tokensOf, type TraceNode, type TraceTree } from "./model";
import { count, duration } from "./text";
import { TimeScale, type Span } from "./time_scale";
import type { TraceExecution, TraceInference } from "./trace";
import { isOpen, type Folds, type Rows } from "./view_state";
import { VirtualList } from "./virtual_list";

export const ROW_HEIGHT = 26;
const MANY_ROWS = 150;
const TICKS = 6;

interface WaterfallProps {
  readonly tree: TraceTree;
  readonly rows: Rows;
  readonly folds: Folds;
  readonly selected: string;
  readonly found: ReadonlySet<string>;
  readonly now: number;
  readonly follows: boolean;
  readonly isFiltered: boolean;
  readonly onSelect: (node: TraceNode) => void;
  readonly onToggle: (node: TraceNode) => void;
  /** A number that changes when the selected row is to be brought into view. */
  readonly reveal: number;
}

/** The rows of a tree with their bars on one axis of time. */
export function Waterfall(props: WaterfallProps): JSX.Element {
  const { tree, rows, selected, now, onSelect } = props;
  const list = useRef<VirtualList>(null);
  const [range, setRange] = useState<readonly [number, number]>([0, 40]);
  const [zoom, setZoom] = useState<"auto" | "all">("auto");
  const zooms = zoom === "auto" && rows.nodes.length > MANY_ROWS;
  const spans = useMemo(() => leafSpans(tree, now), [tree, now]);
  const [from, to] = zooms ? range : [0, rows.nodes.length];
  const scale = useMemo(() => scaleOf(tree, rows, from, to, spans, now), [tree, rows, from, to, spans, now]);
  const onRange = useCallback(
    (first: number, last: number) => setRange((old) => (old[0] === first && old[1] === last ? old : [first, last])),
    [],
  );
  useEffect(() => {
    list.current?.scrollTo(rows.places.get(selected) ?? 0);
  }, [props.reveal]);
  const renderRow = (index: number): JSX.Element => <Row {...props} node={rows.nodes[index] as TraceNode} scale={scale} />;
  const attributes = {
    role: "tree",
    tabIndex: 0,
    id: "waterfall",
    "aria-label": "steps, inferences and calls",
    "aria-activedescendant": rows.places.has(selected) ? `row-${selected}` : undefined,
  };
  return (
    <div class="waterfall">
      <Overview tree={tree} spans={spans} rows={rows} range={range} onPick={(node) => onSelect(node)} />
      <div class="axis" aria-hidden="true">
        <div class="axis-name">
          <button type="button" class="link" tabIndex={-1} onClick={() => setZoom(zoom === "auto" ? "all" : "auto")}>
            {zooms ? "axis: rows in view; above: whole run" : "axis: whole run"}
          </button>
        </div>
        <div class="axis-ticks">
          {scale.ticks(TICKS).map(({ place, ms }) => (
            <span key={ms} class="tick" style={{ left: `${place * 100}%` }}>
              {duration(ms)}
            </span>
          ))}
          {scale.gaps.map(({ from: left, to: right, ms }) => (
            <span key={left} class="gap" title={`${duration(ms)} in which nothing ran`} style={{ left: `${left * 100}%`, width: `${(right - left) * 100}%` }} />
          ))}
        </div>
      </div>
      {rows.nodes.length === 0 ? (
        <p class="nothing">Nothing is left by the filters. Esc clears them.</p>
      ) : (
        <VirtualList control={list} count={rows.nodes.length} rowHeight={ROW_HEIGHT} renderRow={renderRow} onRange={onRange} attributes={attributes} follows={props.follows} />
      )}
    </div>
  );
}

function scaleOf(tree: TraceTree, rows: Rows, from: number, to: number, spans: readonly Span[], now: number): TimeScale {
  const seen = rows.nodes.slice(from, to + 1).filter(({ kind }) => kind !== "execution" && kind !== "step");
  if (seen.length === 0 || to - from >= rows.nodes.length) return new TimeScale(spans, tree.start, Math.max(tree.end, ...live(tree, now)), true);
  let [start, end] = [Infinity, -Infinity];
  for (const node of seen) {
    if (node.start === null) continue;
    start = Math.min(start, node.start);
    end = Math.max(end, node.end ?? now);
  }
  if (!Number.isFinite(start)) return new TimeScale(spans, tree.start, tree.end, true);
  return new TimeScale(spans, start, end, true);
}

function live(tree: TraceTree, now: number): number[] {
  return tree.root.execution.status === "in_progress" ? [now] : [];
}

/** The times in which something ran: those of inferences and calls. */
function leafSpans(tree: TraceTree, now: number): Span[] {
  const spans: Span[] = [];
  const down = new Map<TraceExecution, Span[]>();
  for (const node of tree.nodes) {
    if ((node.kind === "inference" || node.kind === "call") && node.start !== null) {
      const isWaiting = node.kind === "call" && node.data.status === "waiting";
      const end = isWaiting ? node.start : (node.end ?? (isRunning(node) ? now : node.start));
      let pauses = down.get(node.execution);
      if (pauses === undefined) down.set(node.execution, (pauses = downtimes(node.execution)));
      addWithout(spans, { start: node.start, end }, pauses);
    }
  }
  return spans;
}

/** The times in which an execution had no process. */
function downtimes(execution: TraceExecution): Span[] {
  return execution.marks.filter(({ downtime }) => downtime > 0).map(({ at, downtime }) => ({ start: at - downtime, end: at }));
}

/** Add a span without the pauses in it: a call that a process has left behind did not run until another one came. */
function addWithout(spans: Span[], { start, end }: Span, pauses: readonly Span[]): void {
  let at = start;
  for (const pause of pauses) {
    if (pause.end <= at || pause.start >= end) continue;
    spans.push({ start: at, end: Math.max(at, pause.start) });
    at = pause.end;
  }
  spans.push({ start: at, end: Math.max(at, end) });
}

function isRunning(node: TraceNode): boolean {
  switch (node.kind) {
    case "call":
      return node.data.status === "running" && node.execution.status === "in_progress";
    case "step":
      return node.data.status === "open" && node.execution.status === "in_progress";
    case "execution":
    case "pending":
      return node.execution.status === "in_progress";
    default:
      return false;
  }
}

// --- rows --------------------------------------------------------------------------------------------------------------

interface RowProps extends WaterfallProps {
  readonly node: TraceNode;
  readonly scale: TimeScale;
}

function Row({ node, scale, folds, selected, found, now, isFiltered, onSelect, onToggle }: RowProps): JSX.Element {
  const hasChildren = node.children.length > 0;
  const open = hasChildren && (isFiltered || isOpen(node, folds));
  const siblings = node.parent?.children ?? [node];
  const { title, aside } = labelOf(node);
  const classes = ["row", node.kind, node.id === selected ? "selected" : "", found.has(node.id) ? "found" : ""];
  return (
    <div
      class={classes.filter(Boolean).join(" ")}
      id={`row-${node.id}`}
      role="treeitem"
      aria-level={node.depth + 1}
      aria-selected={node.id === selected}
      aria-setsize={siblings.length}
      aria-posinset={siblings.indexOf(node) + 1}
      {...(hasChildren ? { "aria-expanded": open } : {})}
      onClick={() => onSelect(node)}
      onDblClick={() => onToggle(node)}
    >
      <div class="name" style={{ paddingLeft: `${8 + Math.min(node.depth, 14) * 14}px` }}>
        <span
          class="twist"
          aria-hidden="true"
          onClick={(event) => {
            event.stopPropagation();
            onToggle(node);
          }}
        >
          {hasChildren ? <Icon name={open ? "open" : "closed"} /> : null}
        </span>
        <span class={`kind ${node.kind}`} aria-hidden="true" />
        <span class="title">{title}</span>
        <span class="aside">{aside}</span>
        <FlagSigns node={node} />
        <span class="tokens">{tokensOf(node)}</span>
      </div>
      <div class="bars">
        <Bar node={node} scale={scale} now={now} />
      </div>
    </div>
  );
}

/** The signs of a node's flags. */
export function FlagSigns({ node }: { readonly node: TraceNode }): JSX.Element {
  return (
    <span class="flags">
      {node.flags.map((flag) => (
        <span key={flag} class={`flag ${flag}`} role="img" aria-label={FLAGS[flag].word} title={`${FLAGS[flag].word}: ${FLAGS[flag].says}`}>
          <Icon name={flag} />
        </span>
      ))}
    </span>
  );
}

function Bar({ node, scale, now }: { readonly node: TraceNode; readonly scale: TimeScale; readonly now: number }): JSX.Element | null {
  if (node.start === null) return null;
  const running = isRunning(node);
  const end = node.end ?? (running ? now : node.start);
  const [left, right] = [scale.place(node.start), scale.place(end)];
  if (end < scale.start || node.start > scale.end) return null;
  const state = node.flags.find((flag) => STATES.has(flag)) ?? "";
  const isPoint = node.kind === "mark" && end === node.start;
  const isMark = node.kind === "mark" ? node.data.kind : "";
  const classes = `bar ${node.kind} ${isMark} ${running ? "running" : ""} ${state}`;
  const words = end === node.start ? "" : running ? `${duration(end - node.start)} …` : duration(end - node.start);
  // Beside the bar where there is room: behind it, before it, or else in it.
  const room = right <= 0.86 ? "" : left > 0.14 ? "before" : "inside";
  const place = room === "" ? { left: percent(right) } : { right: percent(1 - (room === "before" ? left : right)) };
  const last = node.kind === "inference" && node.data.attempts.length > 0 ? scale.place(afterAttempts(node.data)) : left;
  return (
    <>
      {node.kind === "inference" ? <AttemptBars data={node.data} scale={scale} /> : null}
      <div class={isPoint ? `${classes} point` : classes} style={barPlace(last, right)} />
      <span class={`bar-words ${room}`} style={place}>
        {words}
      </span>
    </>
  );
}

/** The flags that give a bar its color. */
const STATES: ReadonlySet<string> = new Set(["failed", "blocked", "doubt", "waiting", "interrupted"]);

const percent = (share: number): string => `${share * 100}%`;
const barPlace = (left: number, right: number): { left: string; width: string } => ({ left: percent(left), width: `max(3px, ${percent(right - left)})` });

/** When the last attempt of an inference began. */
function afterAttempts({ attempts, started_at, ended_at }: TraceInference): number {
  const failed = attempts.at(-1);
  return failed === undefined ? started_at : Math.min(failed.ended_at + failed.delay, ended_at);
}

/** The attempts that failed, each with the time that was waited after it. */
function AttemptBars({ data, scale }: { readonly data: TraceInference; readonly scale: TimeScale }): JSX.Element {
  let began = data.started_at;
  return (
    <>
      {data.attempts.map(({ ended_at, delay }, index) => {
        const [left, failed, right] = [began, ended_at, Math.min(ended_at + delay, data.ended_at)].map((moment) => scale.place(moment)) as [number, number, number];
        began = ended_at + delay;
        return (
          <span key={index} title={`attempt ${index + 1} failed`}>
            <div class="bar attempt" style={barPlace(left, failed)} />
            {delay > 0 ? <div class="bar delay" style={barPlace(failed, right)} /> : null}
          </span>
        );
      })}
    </>
  );
}

// --- the overview ------------------------------------------------------------------------------------------------------

interface OverviewProps {
  readonly tree: TraceTree;
  readonly spans: readonly Span[];
  readonly rows: Rows;
  readonly range: readonly [number, number];
  readonly onPick: (node: TraceNode) => void;
}

const OVERVIEW_HEIGHT = 40;
const OVERVIEW_ROOM = 20;

/** The whole run in a strip, with what is in view; a click goes there. */
function Overview({ tree, spans, rows, range, onPick }: OverviewProps): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [colors, setColors] = useState(0);
  const scale = useMemo(() => new TimeScale(spans, tree.start, tree.end, true), [spans, tree]);
  useEffect(() => {
    const element = canvas.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    const themes = new MutationObserver(() => setColors((old) => old + 1));
    themes.observe(document.documentElement, { attributes: true });
    return () => {
      observer.disconnect();
      themes.disconnect();
    };
  }, []);
  useLayoutEffect(() => {
    if (canvas.current !== null && width > 0) drawOverview(canvas.current, tree, scale, width);
  }, [tree, scale, width, colors]);
  const view = viewOf(rows, range, scale);
  const pick = (event: MouseEvent): void => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const moment = scale.moment((event.clientX - box.left) / box.width);
    const node = nearest(rows, moment);
    if (node !== null) onPick(node);
  };
  const flags = tree.nodes.length;
  return (
    <div class="overview" onClick={pick} title="the whole run; click to go there">
      <canvas ref={canvas} role="img" aria-label={`overview of the run: ${count(flags, "row")} in ${duration(tree.end - tree.start)}`} />
      {view === null ? null : <div class="overview-view" style={{ left: `${view[0] * 100}%`, width: `max(4px, ${(view[1] - view[0]) * 100}%)` }} />}
    </div>
  );
}

function viewOf(rows: Rows, [first, last]: readonly [number, number], scale: TimeScale): [number, number] | null {
  if (last - first + 1 >= rows.nodes.length) return null;
  let [start, end] = [Infinity, -Infinity];
  for (const node of rows.nodes.slice(first, last + 1)) {
    if (node.start === null || node.kind === "execution" || node.kind === "step") continue;
    start = Math.min(start, node.start);
    end = Math.max(end, node.end ?? node.start);
  }
  return Number.isFinite(start) ? [scale.place(start), scale.place(end)] : null;
}

function nearest(rows: Rows, moment: number): TraceNode | null {
  let [best, distance] = [null as TraceNode | null, Infinity];
  for (const node of rows.nodes) {
    if (node.start === null || node.kind === "execution") continue;
    const away = Math.abs(node.start - moment);
    if (away < distance) [best, distance] = [node, away];
  }
  return best;
}

function drawOverview(canvas: HTMLCanvasElement, tree: TraceTree, scale: TimeScale, width: number): void {
  const ratio = window.devicePixelRatio;
  canvas.width = width * ratio;
  canvas.height = OVERVIEW_HEIGHT * ratio;
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(ratio, ratio);
  const color = colorsOf(canvas);
  const lanes = lanesOf(tree);
  const height = Math.max(1.5, Math.min(5, OVERVIEW_ROOM / [...lanes.values()].reduce((a, b) => Math.max(a, b), 1)));
  for (const node of tree.nodes) {
    if (node.start === null || (node.kind !== "inference" && node.kind !== "call")) continue;
    const left = scale.place(node.start) * width;
    const right = scale.place(node.end ?? node.start) * width;
    context.fillStyle = color(node.kind);
    context.fillRect(left, 6 + (lanes.get(node.id) ?? 0) * (height + 1), Math.max(1, right - left), height);
    const flag = node.flags.find((name) => STATES.has(name));
    if (flag !== undefined) {
      context.fillStyle = color(flag);
      context.fillRect(left, OVERVIEW_HEIGHT - 6, Math.max(2, right - left), 4);
    }
  }
}

const MAX_LANES = 8;

/** Return the lane of each inference and call, such that those at one time are below each other. */
function lanesOf(tree: TraceTree): Map<string, number> {
  const ends: number[] = [];
  const lanes = new Map<string, number>();
  const sorted = tree.nodes.filter((node) => (node.kind === "inference" || node.kind === "call") && node.start !== null);
  sorted.sort((a, b) => (a.start ?? 0) - (b.start ?? 0));
  for (const node of sorted) {
    const free = ends.findIndex((end) => end <= (node.start ?? 0));
    const lane = free >= 0 ? free : Math.min(ends.length, MAX_LANES - 1);
    ends[lane] = node.end ?? node.start ?? 0;
    lanes.set(node.id, lane);
  }
  return lanes;
}

/** Return a function from a name to the color of the theme. */
export function colorsOf(element: HTMLElement): (name: string) => string {
  const probe = document.createElement("span");
  element.parentElement?.append(probe);
  const colors = new Map<string, string>();
  for (const name of ["inference", "call", "execution", "mark", "failed", "blocked", "doubt", "waiting", "interrupted", "text", "muted", "line"]) {
    probe.style.color = `var(--${name})`;
    colors.set(name, getComputedStyle(probe).color);
  }
  probe.remove();
  return (name) => colors.get(name) ?? "gray";
}
