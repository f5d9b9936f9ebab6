// Content of others: text, JSON and differences, folded where they are long.

import { createContext, type ComponentChildren, type JSX } from "preact";
import { useContext, useMemo, useState } from "preact/hooks";
import { diffLines, type DiffLine } from "./diff";
import { Icon } from "./icon";
import { ExactNumber, parseExactly, printJson } from "./json";
import { findFirst, firstLine, piecesOf, visible, whole } from "./text";
import { VirtualList } from "./virtual_list";

/** What the reader is looking for, which is marked and unfolded wherever it is. */
export const Matcher = createContext<RegExp | null>(null);

const CUT = 3000;
const LINE_LENGTH = 140;
const LINE_HEIGHT = 18;

// --- text --------------------------------------------------------------------------------------------------------------

/** A short text in a line. */
export function Inline({ value }: { readonly value: string }): JSX.Element {
  const matcher = useContext(Matcher);
  const pieces = useMemo(() => piecesOf(value, matcher), [value, matcher]);
  return (
    <bdi>
      {pieces.map(({ text, kind }, index) =>
        kind === "plain" ? text : kind === "match" ? <mark key={index}>{text}</mark> : <Escape key={index} text={text} />,
      )}
    </bdi>
  );
}

function Escape({ text }: { readonly text: string }): JSX.Element {
  return (
    <span class="escape" title="a character that cannot be seen">
      {text}
    </span>
  );
}

/** A text of any length: a long one is cut, and shown as a list of lines when a reader wants all of it. */
export function Text({ value, code = false }: { readonly value: string; readonly code?: boolean }): JSX.Element {
  const [isWhole, setIsWhole] = useState(false);
  const matcher = useContext(Matcher);
  if (value.length <= CUT) return <div class={code ? "text code" : "text"}>{value === "" ? <Empty /> : <Inline value={value} />}</div>;
  const button = (
    <button type="button" class="link" onClick={() => setIsWhole(!isWhole)}>
      {isWhole ? "Show less" : `Show all ${whole(value.length)} characters`}
    </button>
  );
  if (isWhole) return <div>{button}<Lines value={value} /></div>;
  const found = findFirst(value, matcher);
  const start = found > CUT / 2 ? found - 300 : 0;
  return (
    <div class={code ? "text code" : "text"}>
      {start > 0 ? <span class="muted">… {whole(start)} characters … </span> : null}
      <Inline value={cutAt(value, start, start + CUT / 2)} />
      <span class="muted">…</span> {button}
    </div>
  );
}

/** Return a part of a text that does not begin or end inside of a character. */
function cutAt(text: string, start: number, end: number): string {
  const isHalf = (index: number): boolean => /[\udc00-\udfff]/.test(text.charAt(index));
  return text.slice(isHalf(start) ? start + 1 : start, isHalf(end) ? end + 1 : end);
}

function Empty(): JSX.Element {
  return <span class="muted">empty</span>;
}

/** Return where the lines of a text start; longer lines than a screen is wide are cut into several. */
function lineStarts(text: string): number[] {
  const starts: number[] = [];
  let at = 0;
  while (at <= text.length) {
    starts.push(at);
    const end = text.indexOf("\n", at);
    const next = end < 0 ? text.length + 1 : end + 1;
    at = Math.min(next, at + LINE_LENGTH);
    if (at < next && /[\udc00-\udfff]/.test(text.charAt(at))) at++;
  }
  return starts;
}

function Lines({ value }: { readonly value: string }): JSX.Element {
  const starts = useMemo(() => lineStarts(value), [value]);
  const renderRow = (index: number): ComponentChildren => {
    const line = value.slice(starts[index], starts[index + 1] ?? value.length);
    return (
      <div class="line">
        <Inline value={line.endsWith("\n") ? line.slice(0, -1) : line} />
      </div>
    );
  };
  const height = Math.min(starts.length * LINE_HEIGHT + 2, 480);
  return (
    <div class="lines" style={{ height: `${height}px` }}>
      <VirtualList count={starts.length} rowHeight={LINE_HEIGHT} renderRow={renderRow} attributes={{ tabIndex: 0 }} className="code" />
    </div>
  );
}

// --- JSON --------------------------------------------------------------------------------------------------------------

const LONGEST_TREE = 2_000_000;
const PAGE = 100;

/** JSON text as a tree that can be folded; text that is not JSON as it is. */
export function JsonText({ text }: { readonly text: string }): JSX.Element {
  const [isRaw, setIsRaw] = useState(false);
  const parsed = useMemo((): { value: unknown } | null => {
    if (text.length > LONGEST_TREE) return null;
    try {
      return { value: parseExactly(text) };
    } catch {
      return null;
    }
  }, [text]);
  if (parsed === null || parsed.value === null || typeof parsed.value !== "object") return <Text value={text} code />;
  return (
    <div class="json">
      <RawButton isRaw={isRaw} onToggle={() => setIsRaw(!isRaw)} />
      {isRaw ? <Text value={text} code /> : <Entry value={parsed.value} depth={0} />}
    </div>
  );
}

/** A value as a tree that can be folded. */
export function JsonValue({ value }: { readonly value: unknown }): JSX.Element {
  const [isRaw, setIsRaw] = useState(false);
  const raw = useMemo(() => (isRaw ? printJson(value) : ""), [isRaw, value]);
  if (typeof value === "string") return <Text value={value} code />;
  if (value === null || typeof value !== "object" || value instanceof ExactNumber) {
    return <div class="text code">{printJson(value)}</div>;
  }
  return (
    <div class="json">
      <RawButton isRaw={isRaw} onToggle={() => setIsRaw(!isRaw)} />
      {isRaw ? <Text value={raw} code /> : <Entry value={value} depth={0} />}
    </div>
  );
}

function RawButton({ isRaw, onToggle }: { readonly isRaw: boolean; readonly onToggle: () => void }): JSX.Element {
  return (
    <button type="button" class="link raw" onClick={onToggle} aria-pressed={isRaw}>
      {isRaw ? "tree" : "raw"}
    </button>
  );
}

/** Whether a value holds what the reader looks for. */
function holds(value: unknown, matcher: RegExp | null): boolean {
  if (matcher === null) return false;
  if (value === null || typeof value !== "object") return String(value).search(matcher) >= 0;
  if (value instanceof ExactNumber) return value.source.search(matcher) >= 0;
  return Object.entries(value).some(([name, item]) => (!Array.isArray(value) && name.search(matcher) >= 0) || holds(item, matcher));
}

function Entry({ name, value, depth }: { readonly name?: string; readonly value: unknown; readonly depth: number }): JSX.Element {
  const matcher = useContext(Matcher);
  const isFolder = value !== null && typeof value === "object" && !(value instanceof ExactNumber);
  const size = isFolder ? Object.keys(value).length : 0;
  const isFound = useMemo(() => isFolder && holds(value, matcher), [value, matcher]);
  const [chosen, setChosen] = useState<boolean | null>(null);
  const [shown, setShown] = useState(PAGE);
  const label = name === undefined ? null : (
    <>
      <span class="json-name">
        <Inline value={name} />
      </span>
      <span class="muted">: </span>
    </>
  );
  if (!isFolder) return <div class="json-leaf">{label}<Scalar value={value} /></div>;
  const isTop = depth === 0 && size > 0;
  const isOpen = isTop || (chosen ?? (isFound || (depth < 3 && size > 0 && size <= 12)));
  const isList = Array.isArray(value);
  const entries = isOpen ? Object.entries(value).slice(0, shown) : [];
  const inside = (
    <>
      {entries.map(([key, item]) => (
        <Entry key={key} name={key} value={item} depth={depth + 1} />
      ))}
      {isOpen && size > shown ? (
        <button type="button" class="link" onClick={() => setShown(shown + 10 * PAGE)}>
          Show more of {whole(size)} entries
        </button>
      ) : null}
    </>
  );
  if (isTop) return <div class="json-top">{inside}</div>;
  if (size === 0) return <div class="json-leaf">{label}<span class="muted">{isList ? "[]" : "{}"}</span></div>;
  return (
    <div class="json-folder">
      <button type="button" class="json-fold" aria-expanded={isOpen} onClick={() => setChosen(!isOpen)}>
        <Icon name={isOpen ? "open" : "closed"} />
        {label}
        {isOpen ? null : <span class="muted">{summaryOf(value, isList, size)}</span>}
      </button>
      {isOpen ? <div class="json-inside">{inside}</div> : null}
    </div>
  );
}

function summaryOf(value: object, isList: boolean, size: number): string {
  if (isList) return size === 1 ? "1 item" : `${whole(size)} items`;
  const names = Object.keys(value).slice(0, 4).map((name) => firstLine(name, 20));
  return names.join(", ") + (size > 4 ? ", …" : "");
}

function Scalar({ value }: { readonly value: unknown }): JSX.Element {
  if (value instanceof ExactNumber) return <span class="json-number">{value.source}</span>;
  if (typeof value === "number") return <span class="json-number">{String(value)}</span>;
  if (typeof value !== "string") return <span class="json-word">{String(value)}</span>;
  if (value.length > 400 || value.includes("\n")) return <div class="json-text"><Text value={value} code /></div>;
  return (
    <span class="json-string">
      "<Inline value={value} />"
    </span>
  );
}

// --- differences -------------------------------------------------------------------------------------------------------

const SIGNS: Readonly<Record<DiffLine["kind"], string>> = { same: " ", removed: "-", added: "+", skip: "…" };
const LONGEST_DIFF = 400_000;
const MOST_LINES = 400;

/** What differs between two texts, line by line. */
export function Diff({ before, after }: { readonly before: string; readonly after: string }): JSX.Element {
  const [isWhole, setIsWhole] = useState(false);
  const isLong = before.length + after.length > LONGEST_DIFF;
  const lines = useMemo(() => (isLong ? [] : diffLines(before, after)), [before, after]);
  if (isLong) {
    return (
      <div>
        <p class="muted">The texts are too long to be compared line by line.</p>
        <h4>Before</h4>
        <Text value={before} code />
        <h4>After</h4>
        <Text value={after} code />
      </div>
    );
  }
  const seen = isWhole ? lines : lines.slice(0, MOST_LINES);
  return (
    <div class="diff code" role="table" aria-label="difference">
      {seen.map((line, index) => (
        <DiffRow key={index} line={line} />
      ))}
      {seen.length < lines.length ? (
        <button type="button" class="link" onClick={() => setIsWhole(true)}>
          Show all {whole(lines.length)} lines
        </button>
      ) : null}
    </div>
  );
}

function DiffRow({ line }: { readonly line: DiffLine }): JSX.Element {
  const words: Readonly<Record<DiffLine["kind"], string>> = { same: "", removed: "removed", added: "added", skip: "" };
  return (
    <div class={`diff-line ${line.kind}`} role="row">
      <span class="diff-sign" role="cell" aria-label={words[line.kind]}>
        {SIGNS[line.kind]}
      </span>
      <span class="diff-text" role="cell">
        {line.parts === undefined ? (
          <Inline value={line.text} />
        ) : (
          line.parts.map(({ text, changed }, index) =>
            changed ? <b key={index}><Inline value={text} /></b> : <Inline key={index} value={text} />,
          )
        )}
      </span>
    </div>
  );
}

// --- folding -----------------------------------------------------------------------------------------------------------

interface FoldProps {
  readonly title: string;
  readonly aside?: ComponentChildren;
  readonly isOpen?: boolean;
  /** What can be copied; nothing by default. */
  readonly copy?: () => string;
  readonly children: ComponentChildren;
}

/** A section that can be folded; what is in it is made when it is opened. */
export function Fold({ title, aside, isOpen = true, copy, children }: FoldProps): JSX.Element {
  const [chosen, setChosen] = useState<boolean | null>(null);
  const open = chosen ?? isOpen;
  return (
    <section class="fold">
      <div class="fold-head">
        <button type="button" class="fold-title" aria-expanded={open} onClick={() => setChosen(!open)}>
          <span class="twist" aria-hidden="true"><Icon name={open ? "open" : "closed"} /></span>
          {visible(title)}
        </button>
        <span class="muted fold-aside">{aside}</span>
        {copy === undefined ? null : <CopyButton text={copy} />}
      </div>
      {open ? <div class="fold-body">{children}</div> : null}
    </section>
  );
}

function CopyButton({ text }: { readonly text: () => string }): JSX.Element {
  const [state, setState] = useState("copy");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text());
      setState("copied");
    } catch {
      setState("not allowed");
    }
  };
  return (
    <button type="button" class="link" onClick={() => void copy()} onBlur={() => setState("copy")}>
      {state}
    </button>
  );
}
