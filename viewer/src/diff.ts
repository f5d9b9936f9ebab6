// Differences between two texts, by lines and inside of lines.

/** A line of a difference; a skip stands for lines that are equal on both sides. */
export interface DiffLine {
  readonly kind: "same" | "removed" | "added" | "skip";
  readonly text: string;
  /** The parts of a changed line, where the other side has a line like it: whether each part is changed. */
  readonly parts?: readonly DiffPart[];
}

/** A part of a changed line. */
export interface DiffPart {
  readonly text: string;
  readonly changed: boolean;
}

type Edit = readonly ["same" | "removed" | "added", string];

const CONTEXT = 3;
const MAX_EDITS = 2000;

/** Return the edits that lead from one list to another, by the algorithm of Myers; a far one is replaced as a whole. */
function edits(before: readonly string[], after: readonly string[]): Edit[] {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  let ends = 0;
  const shared = Math.min(before.length, after.length) - start;
  while (ends < shared && before[before.length - 1 - ends] === after[after.length - 1 - ends]) ends++;
  const middle = myers(before.slice(start, before.length - ends), after.slice(start, after.length - ends));
  const same = (line: string): Edit => ["same", line];
  return [...before.slice(0, start).map(same), ...middle, ...before.slice(before.length - ends).map(same)];
}

function myers(before: readonly string[], after: readonly string[]): Edit[] {
  const replaced = (): Edit[] => [
    ...before.map((line): Edit => ["removed", line]),
    ...after.map((line): Edit => ["added", line]),
  ];
  const [n, m] = [before.length, after.length];
  if (n === 0 || m === 0) return replaced();
  const limit = Math.min(n + m, MAX_EDITS);
  const offset = limit + 1;
  let furthest = new Int32Array(2 * limit + 3);
  const history: Int32Array[] = [];
  for (let d = 0; d <= limit; d++) {
    history.push(furthest.slice(offset - d - 1, offset + d + 2));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (furthest[offset + k - 1] ?? 0) < (furthest[offset + k + 1] ?? 0));
      let x = down ? (furthest[offset + k + 1] ?? 0) : (furthest[offset + k - 1] ?? 0) + 1;
      while (x < n && x - k < m && before[x] === after[x - k]) x++;
      furthest[offset + k] = x;
      if (x >= n && x - k >= m) return backtrack(before, after, history, d);
    }
  }
  return replaced();
}

function backtrack(before: readonly string[], after: readonly string[], history: Int32Array[], last: number): Edit[] {
  const result: Edit[] = [];
  let [x, y] = [before.length, after.length];
  for (let d = last; d > 0; d--) {
    const row = history[d] as Int32Array;
    const at = (k: number): number => row[k + d + 1] ?? 0;
    const k = x - y;
    const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
    const former = down ? k + 1 : k - 1;
    const [fromX, fromY] = [at(former), at(former) - former];
    while (x > fromX && y > fromY) {
      result.push(["same", before[--x] as string]);
      y--;
    }
    if (down) result.push(["added", after[--y] as string]);
    else result.push(["removed", before[--x] as string]);
  }
  while (x > 0) result.push(["same", before[--x] as string]);
  return result.reverse();
}

/** Return the words of a line and what separates them. */
function wordsOf(line: string): string[] {
  return line.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) ?? [];
}

const MAX_WORDS = 400;

function partsOf(before: string, after: string): [DiffPart[], DiffPart[]] | null {
  const [left, right] = [wordsOf(before), wordsOf(after)];
  if (left.length > MAX_WORDS || right.length > MAX_WORDS) return null;
  const [removed, added]: [DiffPart[], DiffPart[]] = [[], []];
  let same = 0;
  for (const [kind, text] of edits(left, right)) {
    if (kind !== "added") append(removed, text, kind === "removed");
    if (kind !== "removed") append(added, text, kind === "added");
    if (kind === "same") same += text.trim().length;
  }
  // Lines that share little are easier to read as a whole.
  return same * 3 < Math.min(before.trim().length, after.trim().length) ? null : [removed, added];
}

function append(parts: DiffPart[], text: string, changed: boolean): void {
  const last = parts.at(-1);
  if (last !== undefined && last.changed === changed) parts[parts.length - 1] = { text: last.text + text, changed };
  else parts.push({ text, changed });
}

/** Return the lines of a difference, with a few equal lines around each change. */
export function diffLines(before: string, after: string): DiffLine[] {
  const all = edits(before.split("\n"), after.split("\n"));
  const lines: DiffLine[] = [];
  let index = 0;
  while (index < all.length) {
    let end = index;
    const isSame = all[index]?.[0] === "same";
    while (end < all.length && (all[end]?.[0] === "same") === isSame) end++;
    const block = all.slice(index, end);
    lines.push(...(isSame ? withoutMiddle(block, index === 0, end === all.length) : changedLines(block)));
    index = end;
  }
  return lines;
}

function withoutMiddle(block: readonly Edit[], isFirst: boolean, isLast: boolean): DiffLine[] {
  const same = (edit: Edit): DiffLine => ({ kind: "same", text: edit[1] });
  const head = isFirst ? 0 : CONTEXT;
  const tail = isLast ? 0 : CONTEXT;
  if (block.length <= head + tail + 1) return block.map(same);
  const skipped = block.length - head - tail;
  const skip: DiffLine = { kind: "skip", text: `${skipped} equal lines` };
  return [...block.slice(0, head).map(same), skip, ...block.slice(block.length - tail).map(same)];
}

function changedLines(block: readonly Edit[]): DiffLine[] {
  const removed = block.filter(([kind]) => kind === "removed").map(([, text]) => text);
  const added = block.filter(([kind]) => kind === "added").map(([, text]) => text);
  const paired = removed.length === added.length ? removed.map((line, i) => partsOf(line, added[i] as string)) : [];
  const line = (kind: "removed" | "added", text: string, index: number): DiffLine => {
    const parts = paired[index]?.[kind === "removed" ? 0 : 1];
    return parts === undefined ? { kind, text } : { kind, text, parts };
  };
  return [
    ...removed.map((text, i) => line("removed", text, i)),
    ...added.map((text, i) => line("added", text, i)),
  ];
}
