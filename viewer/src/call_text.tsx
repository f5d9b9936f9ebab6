// The text of a call that waits, as the server has rendered it, and whether a reader has had its end in view.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { isDrawn } from "./glyphs";
import { escapesOf } from "./text";

interface CallTextProps {
  /** The lines of the call: its tool, then its arguments and defaults. Shown as they are: the server has made every character visible. */
  readonly rendering: string;
  /** Called once, when the end of the text is in view. */
  readonly onSeen?: () => void;
}

/** A call, whole: a box that scrolls where the text is longer. */
export function CallText({ rendering, onSeen }: CallTextProps): JSX.Element {
  const end = useRef<HTMLSpanElement>(null);
  useEffect(() => (end.current === null || onSeen === undefined ? undefined : whenInView(end.current, onSeen)), [rendering]);
  const lines = rendering.split("\n");
  return (
    <div class="call-text code" tabIndex={0} role="region" aria-label="the call">
      {lines.map((line, index) => (
        <div key={index} class="call-line">
          <Drawn text={line} />
          {index === lines.length - 1 ? <span ref={end} class="call-end" /> : null}
        </div>
      ))}
    </div>
  );
}

const RUNS = /([\0-\x7f]+)|./gsu;

/** A text; a character that this browser cannot draw is shown as its escape, and copied as it is. */
function Drawn({ text }: { readonly text: string }): JSX.Element {
  const parts = useMemo(() => {
    const found: (string | JSX.Element)[] = [];
    for (const [run, ascii] of text.matchAll(RUNS)) {
      const isPlain = ascii !== undefined || isDrawn(run);
      if (isPlain && typeof found.at(-1) === "string") found.push(`${found.pop() as string}${run}`);
      else found.push(isPlain ? run : <span key={found.length} class="undrawn" data-escape={escapesOf(run)}>{run}</span>);
    }
    return found;
  }, [text]);
  return <>{parts}</>;
}

// Where a browser tells whether something is covered, it says so in the entry.
interface Seen extends IntersectionObserverEntry {
  readonly isVisible?: boolean;
}

const WHOLE = 0.9;
const SMALLEST = 4;
const RETRY_MS = 250;
const OPTIONS: IntersectionObserverInit & { trackVisibility: boolean; delay: number } = {
  threshold: [0, WHOLE, 1],
  trackVisibility: true,
  delay: 100,
};

/** Call a function once when an element is in view as a whole: in no box that hides it, under nothing else, in a tab that is shown. */
function whenInView(element: Element, onSeen: () => void): () => void {
  let observer: IntersectionObserver | null = null;
  let timer = 0;
  const stop = (): void => {
    observer?.disconnect();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", start);
  };
  const look = (entries: IntersectionObserverEntry[]): void => {
    const entry = entries.at(-1);
    if (entry === undefined || !entry.isIntersecting) return;
    if (isSeen(entry, element)) {
      stop();
      onSeen();
    } else {
      // What covers it goes away without a scroll.
      clearTimeout(timer);
      timer = window.setTimeout(start, RETRY_MS);
    }
  };
  const start = (): void => {
    observer?.disconnect();
    observer = new IntersectionObserver(look, OPTIONS);
    observer.observe(element);
  };
  document.addEventListener("visibilitychange", start);
  start();
  return stop;
}

function isSeen(entry: Seen, element: Element): boolean {
  const { left, top, width, height } = element.getBoundingClientRect();
  return (
    document.visibilityState === "visible" &&
    entry.intersectionRatio >= WHOLE &&
    entry.isVisible !== false &&
    Math.min(width, height) >= SMALLEST &&
    document.elementFromPoint(left + width / 2, top + height / 2) === element
  );
}
