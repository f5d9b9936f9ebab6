// Two runs beside each other, with the first place where they differ.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { compareTrees, textOfNode, type ComparedRow } from "./compare";
import { Diff, Fold, Inline } from "./content";
import { Icon } from "./icon";
import { prettyText } from "./json";
import { agentName, buildTree, labelOf, type TraceNode, type TraceTree } from "./model";
import { count, dollars, duration, short } from "./text";
import type { TraceComparison, TraceDivergence } from "./trace";
import { VirtualList } from "./virtual_list";
import { FlagSigns } from "./waterfall";

const ROW_HEIGHT = 28;

interface CompareProps {
  readonly tree: TraceTree;
  readonly comparison: TraceComparison;
}

/** The steps of two runs beside each other; a row in which they differ can be opened. */
export function Compare({ tree, comparison }: CompareProps): JSX.Element {
  const other = useMemo(() => buildTree(comparison.trace), [comparison]);
  const rows = useMemo(() => compareTrees(tree, other), [tree, other]);
  const { divergence } = comparison;
  const first = useMemo(() => firstPlace(rows, divergence), [rows, divergence]);
  const [selected, setSelected] = useState(Math.max(first, 0));
  const list = useRef<VirtualList>(null);
  useEffect(() => list.current?.scrollTo(selected), [selected]);
  useEffect(() => list.current?.element.current?.focus(), []);
  const differing = rows.filter(({ kind, isEqual }) => kind === "step" && !isEqual).length;
  const move = (event: KeyboardEvent): void => {
    const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    setSelected((old) => Math.min(Math.max(old + by, 0), rows.length - 1));
  };
  const attributes = {
    role: "listbox",
    tabIndex: 0,
    "aria-label": "steps of both runs",
    "aria-activedescendant": `compared-${selected}`,
    onKeyDown: move,
  };
  return (
    <div class="compare">
      <div class="compare-heads">
        <RunHead tree={tree} name="left" />
        <RunHead tree={other} name="right" />
      </div>
      <Divergence divergence={divergence} differing={differing} onShow={first < 0 ? null : () => setSelected(first)} />
      <VirtualList
        control={list}
        count={rows.length}
        rowHeight={ROW_HEIGHT}
        attributes={attributes}
        renderRow={(index) => (
          <CompareRow row={rows[index] as ComparedRow} id={`compared-${index}`} isSelected={index === selected} isFirst={index === first} onSelect={() => setSelected(index)} />
        )}
      />
      <Difference row={rows[selected]} />
    </div>
  );
}

function firstPlace(rows: readonly ComparedRow[], divergence: TraceDivergence | null): number {
  if (divergence === null) return rows.findIndex(({ kind, isEqual }) => kind !== "step" && !isEqual);
  const kind = divergence.what === "call" || divergence.what === "outcome" ? "call" : "inference";
  const exact = rows.findIndex(({ id }) => id === `${divergence.step}.${kind}.${divergence.index ?? 0}`);
  return exact >= 0 ? exact : rows.findIndex(({ step }) => step === divergence.step);
}

function RunHead({ tree, name }: { readonly tree: TraceTree; readonly name: string }): JSX.Element {
  const { execution } = tree.root;
  return (
    <div class="compare-head">
      <b>{agentName(execution)}</b> <span class={`badge status-${execution.status}`}>{execution.status}</span>
      <div class="muted">
        <Inline value={`${name}: ${execution.id}`} />
      </div>
      <div class="muted">
        {count(execution.steps.length, "step")} · {duration(tree.end - tree.start)} ·{" "}
        {short((execution.usage.input_tokens ?? 0) + (execution.usage.output_tokens ?? 0))} tokens
        {execution.cost === null ? "" : ` · ${dollars(execution.cost)}`}
      </div>
    </div>
  );
}

interface DivergenceProps {
  readonly divergence: TraceDivergence | null;
  readonly differing: number;
  readonly onShow: (() => void) | null;
}

function Divergence({ divergence, differing, onShow }: DivergenceProps): JSX.Element {
  if (divergence === null && differing === 0) return <p class="note">Both runs are equal.</p>;
  return (
    <div class="note changed divergence">
      <b>{divergence === null ? "Requests are equal; what follows differs" : `First divergence: ${divergence.what} of step ${divergence.step}`}</b>{" "}
      {divergence === null ? null : <span class="code"><Inline value={divergence.path} /></span>}{" "}
      <span class="muted">{count(differing, "step differs", "steps differ")}</span>{" "}
      {onShow === null ? null : (
        <button type="button" class="link" onClick={onShow}>
          Show it
        </button>
      )}
      {divergence === null ? null : (
        <Fold title="What differs" isOpen={true}>
          <Diff before={prettyText(divergence.left ?? "")} after={prettyText(divergence.right ?? "")} />
        </Fold>
      )}
    </div>
  );
}

interface CompareRowProps {
  readonly row: ComparedRow;
  readonly id: string;
  readonly isSelected: boolean;
  readonly isFirst: boolean;
  readonly onSelect: () => void;
}

function CompareRow({ row, id, isSelected, isFirst, onSelect }: CompareRowProps): JSX.Element {
  const classes = ["compare-row", row.kind, row.isEqual ? "equal" : "differs", isSelected ? "selected" : "", isFirst ? "first" : ""];
  return (
    <div class={classes.filter(Boolean).join(" ")} id={id} role="option" aria-selected={isSelected} onClick={onSelect}>
      <Side node={row.left} />
      <span class="compare-sign" role="img" aria-label={row.isEqual ? "equal" : isFirst ? "first divergence" : "differs"}>
        <Icon name={isFirst ? "first" : row.isEqual ? "equal" : "differs"} />
      </span>
      <Side node={row.right} />
    </div>
  );
}

function Side({ node }: { readonly node: TraceNode | null }): JSX.Element {
  if (node === null) return <div class="side missing">nothing here</div>;
  const { title, aside } = labelOf(node);
  return (
    <div class="side">
      <span class={`kind ${node.kind}`} aria-hidden="true" />
      <span class="title">{title}</span>
      <span class="aside">{aside}</span>
      <FlagSigns node={node} />
    </div>
  );
}

function Difference({ row }: { readonly row: ComparedRow | undefined }): JSX.Element {
  const both = row !== undefined && row.kind !== "step";
  return (
    <div class="compare-detail" aria-label="difference of the selected row" role="region">
      {!both ? (
        <p class="muted">Select an inference or a call to see both sides.</p>
      ) : row.isEqual ? (
        <p class="muted">Both sides are equal.</p>
      ) : (
        <Diff before={textOfNode(row.left)} after={textOfNode(row.right)} />
      )}
    </div>
  );
}
