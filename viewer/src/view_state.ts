// What a reader has chosen, and what follows from it: which rows are shown.

import { ALL_FLAGS, type Flag, type TraceNode, type TraceTree } from "./model";

/** The rows of the waterfall. */
export interface Rows {
  readonly nodes: readonly TraceNode[];
  readonly places: ReadonlyMap<string, number>;
}

/** Which nodes are folded: those that differ from what is usual for their kind. */
export type Folds = ReadonlyMap<string, boolean>;

/** Whether the children of a node are shown. */
export function isOpen(node: TraceNode, folds: Folds): boolean {
  return folds.get(node.id) ?? true;
}

/** Return the rows to show: of a filtered tree only what is wanted, with the nodes above it. */
export function rowsOf(tree: TraceTree, folds: Folds, wanted: ReadonlySet<string> | null): Rows {
  const nodes: TraceNode[] = [];
  const kept = wanted === null ? null : withAncestors(tree, wanted);
  const visit = (node: TraceNode): void => {
    if (kept !== null && !kept.has(node.id)) return;
    nodes.push(node);
    if (kept !== null || isOpen(node, folds)) for (const child of node.children) visit(child);
  };
  visit(tree.root);
  return { nodes, places: new Map(nodes.map((node, place) => [node.id, place])) };
}

function withAncestors(tree: TraceTree, wanted: ReadonlySet<string>): ReadonlySet<string> {
  const kept = new Set<string>();
  for (const id of wanted) {
    let node = tree.byId.get(id) ?? null;
    while (node !== null && !kept.has(node.id)) {
      kept.add(node.id);
      node = node.parent;
    }
  }
  return kept;
}

/** Return the ids of the nodes that have one of some flags. */
export function flagged(tree: TraceTree, flags: ReadonlySet<Flag>): ReadonlySet<string> {
  return new Set(tree.nodes.filter((node) => node.flags.some((flag) => flags.has(flag))).map(({ id }) => id));
}

/** Return folds in which the nodes above a node are open. */
export function unfoldedTo(node: TraceNode, folds: Folds): Folds {
  const opened = new Map(folds);
  for (let above = node.parent; above !== null; above = above.parent) opened.delete(above.id);
  return opened;
}

/** Return folds in which every step, or nothing, is closed. */
export function foldAll(tree: TraceTree, isClosed: boolean): Folds {
  if (!isClosed) return new Map();
  return new Map(tree.nodes.filter(({ kind, children }) => kind === "step" && children.length > 0).map(({ id }) => [id, false]));
}

/** Return the next node with a flag, after a place or before it; null without one. */
export function nextFlagged(rows: Rows, place: number, direction: 1 | -1): TraceNode | null {
  const urgent = new Set<Flag>(ALL_FLAGS.filter((flag) => flag !== "masked"));
  for (let at = place + direction; at >= 0 && at < rows.nodes.length; at += direction) {
    const node = rows.nodes[at] as TraceNode;
    if (node.flags.some((flag) => urgent.has(flag))) return node;
  }
  return null;
}

// --- tabs and themes ---------------------------------------------------------------------------------------------------

/** What can be shown in the large part of the page. */
export type Tab = "timeline" | "conversation" | "curves" | "compare";

/** How the page looks: as the system does, or as chosen. */
export type Theme = "system" | "light" | "dark";

const THEME_KEY = "agentloop-theme";

/** Return the theme that was chosen on this machine. */
export function storedTheme(): Theme {
  try {
    const stored = localStorage.getItem(THEME_KEY);
    return stored === "light" || stored === "dark" ? stored : "system";
  } catch {
    return "system"; // files have no storage in some browsers
  }
}

/** Show the page in a theme, and remember it. */
export function applyTheme(theme: Theme): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    return; // it holds until the page is closed
  }
}

/** Give an element the focus when it comes to the page, for the first field of a form. */
export function focusFirst(element: HTMLElement | null): void {
  element?.focus();
}
