// JSON that is shown as it was written.

/** A number that this language would round, by its digits. */
export class ExactNumber {
  constructor(readonly source: string) {}
}

// To look at each value takes several times as long, so that is done only where it can matter.
const LARGE_NUMBER = /(^|[:[,])\s*-?\d{16,}(?![\d.eE])/;

/** Parse JSON; whole numbers that this language would round are kept by their digits. */
export function parseExactly(text: string): unknown {
  if (!LARGE_NUMBER.test(text)) return JSON.parse(text);
  const revive = (_: string, value: unknown, context?: { source?: string }): unknown =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? new ExactNumber(context?.source ?? "")
      : value;
  return JSON.parse(text, revive as (key: string, value: unknown) => unknown);
}

/** Return a value as JSON with a line for each entry. */
export function printJson(value: unknown, indent = ""): string {
  if (value instanceof ExactNumber) return value.source;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const deeper = `${indent}  `;
  const isList = Array.isArray(value);
  const entries = isList
    ? value.map((item: unknown) => printJson(item, deeper))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${printJson(item, deeper)}`);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) return open + close;
  return `${open}\n${entries.map((entry) => deeper + entry).join(",\n")}\n${indent}${close}`;
}

/** Return JSON text with a line for each entry; other text as it is. */
export function prettyText(text: string): string {
  try {
    return printJson(parseExactly(text));
  } catch {
    return text;
  }
}
