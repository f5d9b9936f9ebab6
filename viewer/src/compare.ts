// Two traces beside each other: which steps, inferences and calls of the first executions are equal.

import { prettyText, printJson } from "./json";
import type { CallNode, InferenceNode, TraceNode, TraceTree } from "./model";
import type { TracePart } from "./trace";

/** A row of a comparison: the nodes of both sides at one place. */
export interface ComparedRow {
  readonly id: string;
  readonly kind: "step" | "inference" | "call";
  readonly left: TraceNode | null;
  readonly right: TraceNode | null;
  readonly isEqual: boolean;
  readonly step: number;
}

/** Return the rows of two trees: steps by number, within them inferences and calls by place. */
export function compareTrees(left: TraceTree, right: TraceTree): ComparedRow[] {
  const [leftSteps, rightSteps] = [stepsOf(left), stepsOf(right)];
  const numbers = [...new Set([...leftSteps.keys(), ...rightSteps.keys()])].sort((a, b) => a - b);
  const taken = Math.max(takenSteps(left), takenSteps(right));
  const rows: ComparedRow[] = [];
  for (const step of numbers) {
    const [one, other] = [leftSteps.get(step) ?? null, rightSteps.get(step) ?? null];
    const kinds = step > taken ? (["inference", "call"] as const) : (["call"] as const);
    const inner = kinds.flatMap((kind) => {
      const [lefts, rights] = [childrenOf(one, kind), childrenOf(other, kind)];
      return Array.from({ length: Math.max(lefts.length, rights.length) }, (_, index): ComparedRow => {
        const [a, b] = [lefts[index] ?? null, rights[index] ?? null];
        return { id: `${step}.${kind}.${index}`, kind, left: a, right: b, isEqual: isEqual(a, b), step };
      });
    });
    const isSame = one !== null && other !== null && inner.every((row) => row.isEqual);
    rows.push({ id: `${step}`, kind: "step", left: one, right: other, isEqual: isSame, step }, ...inner);
  }
  return rows;
}

/** Return how many steps a fork has from its original, with which their inferences are recorded. */
function takenSteps({ root }: TraceTree): number {
  return root.execution.forked_from?.step ?? 0;
}

function stepsOf(tree: TraceTree): Map<number, TraceNode> {
  return new Map(tree.root.children.filter(({ kind }) => kind === "step").map((node) => [node.step, node]));
}

function childrenOf(node: TraceNode | null, kind: "inference" | "call"): TraceNode[] {
  return node?.children.filter((child) => child.kind === kind) ?? [];
}

function isEqual(left: TraceNode | null, right: TraceNode | null): boolean {
  if (left === null || right === null || left.kind !== right.kind) return false;
  return textOfNode(left) === textOfNode(right);
}

/** Return what is compared of a node, as text: what was decided, and what came of it. */
export function textOfNode(node: TraceNode | null): string {
  if (node?.kind === "inference") return textOfInference(node);
  return node?.kind === "call" ? textOfCall(node) : "";
}

function textOfInference({ data }: InferenceNode): string {
  if (data.error !== null) return `${data.error.type}: ${data.error.message}`;
  return (data.response ?? []).map(textOfPart).join("\n");
}

function textOfPart(part: TracePart): string {
  switch (part.type) {
    case "text":
      return part.text;
    case "reasoning":
      return `(reasoning) ${part.text}`;
    case "call":
      return `› ${part.name} ${prettyText(part.arguments)}`;
    default:
      return printJson(part);
  }
}

function textOfCall({ data }: CallNode): string {
  const outcome = data.error === null ? printJson(data.value) : `${data.error.type}: ${data.error.message}`;
  return `${data.name} ${prettyText(data.arguments)}\n\n${data.status}\n${outcome}`;
}
