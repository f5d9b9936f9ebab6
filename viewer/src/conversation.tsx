// The conversation of an execution as it grew.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Inline } from "./content";
import { agentName, executionNodeId, messageAt, type TraceNode, type TraceTree } from "./model";
import { Parts } from "./parts";
import { count } from "./text";
import type { TraceExecution } from "./trace";
import { VirtualBlocks } from "./virtual_list";

interface ConversationProps {
  readonly tree: TraceTree;
  readonly node: TraceNode;
  readonly follows: boolean;
  readonly draft: string;
  readonly onSelect: (id: string) => void;
}

type Block =
  | { readonly kind: "step"; readonly step: number }
  | { readonly kind: "message"; readonly index: number; readonly step: number }
  | { readonly kind: "dropped"; readonly indexes: readonly number[]; readonly step: number };

/** Return the blocks of a conversation: its messages, where each step begins, and what was replaced on the way. */
export function blocksOf(execution: TraceExecution): Block[] {
  const blocks: Block[] = [];
  const current: number[] = [];
  let step = -1;
  for (const change of execution.conversation) {
    if (change.step !== step && change.step > 0) blocks.push({ kind: "step", step: change.step });
    step = change.step;
    const dropped = current.splice(change.keep);
    if (dropped.length > 0) blocks.push({ kind: "dropped", indexes: dropped, step });
    const added = change.add.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, place) => first + place));
    const again = new Set(dropped);
    // What stays behind the replaced messages is not shown a second time.
    blocks.push(...added.filter((index) => !again.has(index)).map((index): Block => ({ kind: "message", index, step })));
    current.push(...added);
  }
  return blocks;
}

/** The messages of the execution of the selected node. */
export function Conversation({ tree, node, follows, draft, onSelect }: ConversationProps): JSX.Element {
  const { execution } = node;
  const blocks = useMemo(() => blocksOf(execution), [execution, execution.conversation.length]);
  const list = useRef<VirtualBlocks>(null);
  const all = useMemo(() => tree.nodes.filter(({ kind }) => kind === "execution"), [tree]);
  useEffect(() => {
    const place = blocks.findIndex((block) => block.step >= node.step);
    if (place >= 0 && node.step > 0) list.current?.scrollTo(place);
  }, [execution.id, node.step]);
  const total = draft === "" ? blocks.length : blocks.length + 1;
  return (
    <div class="conversation">
      {all.length > 1 ? (
        <label class="chooser">
          Agent{" "}
          <select value={execution.id} onChange={(event) => onSelect(executionNodeId(event.currentTarget.value))}>
            {all.map((other) => (
              <option key={other.id} value={other.execution.id}>
                {"  ".repeat(other.depth)}
                {agentName(other.execution)}
              </option>
            ))}
          </select>
        </label>
      ) : null}
      <VirtualBlocks
        control={list}
        key={execution.id}
        count={total}
        estimate={120}
        follows={follows}
        attributes={{ role: "log", tabIndex: 0, "aria-label": "conversation" }}
        renderBlock={(index) => {
          const block = blocks[index];
          if (block === undefined) return <Draft text={draft} />;
          return <ConversationBlock block={block} execution={execution} selected={node} onSelect={onSelect} />;
        }}
      />
    </div>
  );
}

function Draft({ text }: { readonly text: string }): JSX.Element {
  return (
    <div class="message assistant draft">
      <span class="role">assistant, writing</span>
      <Inline value={text} />
    </div>
  );
}

interface BlockProps {
  readonly block: Block;
  readonly execution: TraceExecution;
  readonly selected: TraceNode;
  readonly onSelect: (id: string) => void;
}

function ConversationBlock({ block, execution, selected, onSelect }: BlockProps): JSX.Element | null {
  switch (block.kind) {
    case "step":
      return (
        <button type="button" class={selected.step === block.step ? "divider current" : "divider"} onClick={() => onSelect(`${execution.id}#${block.step}`)}>
          Step {block.step}
        </button>
      );
    case "dropped":
      return (
        <details class="dropped">
          <summary>{count(block.indexes.length, "message")} replaced before this step</summary>
          {block.indexes.slice(0, 200).map((index) => (
            <MessageBlock key={index} index={index} execution={execution} onSelect={onSelect} />
          ))}
        </details>
      );
    case "message":
      return <MessageBlock index={block.index} execution={execution} onSelect={onSelect} />;
  }
}

interface MessageProps {
  readonly index: number;
  readonly execution: TraceExecution;
  readonly onSelect: (id: string) => void;
}

function MessageBlock({ index, execution, onSelect }: MessageProps): JSX.Element | null {
  const message = messageAt(execution, index);
  if (message === null) return null;
  const known = ["user", "assistant", "system"].includes(message.role) ? message.role : "other";
  return (
    <div class={`message ${known}`}>
      <span class="role">
        <Inline value={message.role} />
      </span>
      <Parts parts={message.parts} execution={execution} onSelect={onSelect} />
    </div>
  );
}
