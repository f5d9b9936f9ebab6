// Work over many nodes in slices, between which the page answers.

import { textsOf, type TraceNode } from "./model";

const SLICE_MS = 10;

/** What a search has found so far: the ids of nodes, in their order. */
export interface SearchState {
  readonly found: readonly string[];
  readonly ids: ReadonlySet<string>;
  readonly isDone: boolean;
}

export const NOTHING_FOUND: SearchState = { found: [], ids: new Set(), isDone: true };

/** Look for an expression in nodes; reports what is found between slices. Returns a function that ends the search. */
export function searchNodes(
  nodes: readonly TraceNode[],
  matcher: RegExp,
  report: (state: SearchState) => void,
): () => void {
  const found: string[] = [];
  let [index, isEnded] = [0, false];
  let texts: Iterator<string> | null = null;
  const channel = new MessageChannel();
  const slice = (): void => {
    if (isEnded) return;
    const until = performance.now() + SLICE_MS;
    while (index < nodes.length && performance.now() < until) {
      const node = nodes[index] as TraceNode;
      texts ??= textsOf(node);
      const text = texts.next();
      const isFound = text.done !== true && text.value.search(matcher) >= 0;
      if (isFound) found.push(node.id);
      if (isFound || text.done === true) {
        index++;
        texts = null;
      }
    }
    const isDone = index >= nodes.length;
    report({ found: [...found], ids: new Set(found), isDone });
    if (!isDone) channel.port2.postMessage(null);
  };
  channel.port1.onmessage = slice;
  channel.port2.postMessage(null);
  return () => {
    isEnded = true;
    channel.port1.close();
  };
}
