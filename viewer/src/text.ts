// Text of others, made visible: what a reader sees is what the text holds.

// What shows nothing, or only space other than a space, a tab and a line feed: by the categories of Unicode, and letters, marks and
// symbols that are blank. A joiner is shown unless it joins two characters beyond ASCII, as in many emoji and scripts, and so is the
// selector of a picture after a picture. (agentloop/values/visible_text.py; a test compares the two.)
const HIDDEN =
  /(?![ \t\n\u200c\u200d\ufe0f])[\p{C}\p{Z}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0\u{13441}\u{13442}\u{16fe4}\u{1bca0}-\u{1bca3}\u{1d159}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]|(?<![^\0-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\0-\x7f])|(?<!\p{Extended_Pictographic})\ufe0f/gu;

/** A piece of a text: as it is, or an escape that stands for a character that cannot be seen. */
export interface Piece {
  readonly text: string;
  readonly kind: "plain" | "escape" | "match";
}

const NAMED: Readonly<Record<string, string>> = { "\r": "\\r", "\0": "\\0", "\x1b": "\\e", "\b": "\\b" };

/** Return the escape that stands for a hidden character. */
export function escapeOf(character: string): string {
  const named = NAMED[character];
  if (named !== undefined) return named;
  const code = character.codePointAt(0) ?? 0;
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

/** Return a text with every hidden character escaped, for where one piece is needed, such as a title. */
export function visible(text: string): string {
  return text.replace(HIDDEN, escapeOf);
}

/** Return a text as escapes of JSON. */
export function escapesOf(text: string): string {
  return text.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Return JSON with every hidden character of its texts as an escape of JSON, which means the same. */
export function escapeJson(text: string): string {
  return text.replace(HIDDEN, (hidden) => (hidden === "\r" ? hidden : escapesOf(hidden)));
}

/** Return the first line of a text, cut, for a row of a list. */
export function firstLine(text: string, limit = 160): string {
  const start = text.slice(0, limit * 4).trimStart();
  const end = start.indexOf("\n");
  const line = end < 0 ? start : start.slice(0, end);
  return visible(line.length > limit ? `${line.slice(0, limit)}…` : line);
}

/** Return an expression that finds a text whatever its case; null for an empty one. */
export function matcherOf(query: string): RegExp | null {
  const wanted = query.trim();
  return wanted === "" ? null : new RegExp(wanted.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&"), "gi");
}

/** Return the pieces of a text: hidden characters as escapes, and what a search has found. */
export function piecesOf(text: string, matcher: RegExp | null): Piece[] {
  const pieces: Piece[] = [];
  const addVisible = (part: string, kind: "plain" | "match"): void => {
    let end = 0;
    for (const found of part.matchAll(HIDDEN)) {
      if (found.index > end) pieces.push({ text: part.slice(end, found.index), kind });
      pieces.push({ text: escapeOf(found[0]), kind: "escape" });
      end = found.index + found[0].length;
    }
    if (end < part.length) pieces.push({ text: part.slice(end), kind });
  };
  let end = 0;
  if (matcher !== null) {
    for (const found of text.matchAll(matcher)) {
      addVisible(text.slice(end, found.index), "plain");
      addVisible(found[0], "match");
      end = found.index + found[0].length;
    }
  }
  addVisible(text.slice(end), "plain");
  return pieces;
}

/** Return the index of the first match in a text; -1 without one. */
export function findFirst(text: string, matcher: RegExp | null): number {
  if (matcher === null) return -1;
  return text.search(matcher);
}

// --- figures -----------------------------------------------------------------------------------------------------------

/** Return a whole number with separators. */
export function whole(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Return a number in a short form: 950, 12.4k, 3.1M. */
export function short(value: number): string {
  if (Math.abs(value) < 1000) return String(Math.round(value));
  const [scaled, unit] = Math.abs(value) < 999_950 ? [value / 1000, "k"] : [value / 1_000_000, "M"];
  return `${scaled.toFixed(Math.abs(scaled) < 10 ? 1 : 0).replace(/\.0$/, "")}${unit}`;
}

/** Return a duration in milliseconds as text: 8 ms, 1.24 s, 3m 05s, 2h 10m. */
export function duration(ms: number | null): string {
  if (ms === null) return "–";
  if (ms < 1) return ms <= 0 ? "0 ms" : "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(ms < 9_995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  const [minutes, hours, days] = [Math.floor(seconds / 60), Math.floor(seconds / 3600), Math.floor(seconds / 86_400)];
  if (seconds < 3600) return `${minutes}m ${String(seconds % 60).padStart(2, "0")}s`;
  if (seconds < 86_400) return `${hours}h ${String(minutes % 60).padStart(2, "0")}m`;
  return `${days}d ${hours % 24}h`;
}

/** Return an amount of US dollars. */
export function dollars(value: number): string {
  if (value === 0) return "$0";
  return `$${value.toFixed(value < 0.01 ? 5 : value < 1 ? 4 : 2)}`;
}

/** Return a moment in milliseconds since 1970 as local time with milliseconds. */
export function clock(ms: number | null): string {
  if (ms === null) return "–";
  const date = new Date(ms);
  const two = (value: number): string => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${day} ${time}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** Return a count with its noun. */
export function count(value: number, noun: string, plural = `${noun}s`): string {
  return `${whole(value)} ${value === 1 ? noun : plural}`;
}
