// Signs that are drawn, so that they look the same whatever fonts a machine has.

import type { JSX } from "preact";
import type { Flag } from "./model";

export type IconName = Flag | "open" | "closed" | "close" | "back" | "equal" | "differs" | "first" | "system" | "dark" | "light" | "help";

const LINES: Readonly<Record<IconName, string>> = {
  failed: "M3 3l6 6M9 3l-6 6",
  blocked: "M6 1.7a4.3 4.3 0 1 0 .01 0M3 3l6 6",
  doubt: "M4 4.2a2 2 0 1 1 3 1.7c-.7.4-1 .8-1 1.6M6 9.6v.1",
  retried: "M9.8 6.4A3.9 3.9 0 1 1 8.6 3.2M9 1v2.6H6.4",
  changed: "M6 1.8v5M3.5 4.3h5M3.5 9.6h5",
  waiting: "M4.3 2.5v7M7.7 2.5v7",
  interrupted: "M6.8 1L3.2 6.6h2.6L5.2 11l3.6-5.6H6.2z",
  recovered: "M2.2 6.4a3.9 3.9 0 1 0 1.2-3.2M3 1v2.6h2.6",
  masked: "M3.5 3.5h5v5h-5zM3.5 5h5M3.5 7h5",
  open: "M3 4.5l3 3 3-3",
  closed: "M4.5 3l3 3-3 3",
  close: "M3 3l6 6M9 3l-6 6",
  back: "M7.5 2.5L4 6l3.5 3.5",
  equal: "M3.5 4.7h5M3.5 7.3h5",
  differs: "M3 4.7h6M3 7.3h6M7.8 2.5l-3.6 7",
  first: "M6 1.5L10.5 6 6 10.5 1.5 6z",
  system: "M6 1.7a4.3 4.3 0 1 0 .01 0M6 2v8M7.7 2.6v6.8M9.3 4v4",
  dark: "M9.9 7.4A4.4 4.4 0 1 1 5 1.8a3.5 3.5 0 0 0 4.9 5.6z",
  light: "M6 3.8a2.2 2.2 0 1 0 .01 0M6 .8v1.2M6 10v1.2M.8 6H2M10 6h1.2M2.3 2.3l.9.9M8.8 8.8l.9.9M9.7 2.3l-.9.9M3.2 8.8l-.9.9",
  help: "M4 4.2a2 2 0 1 1 3 1.7c-.7.4-1 .8-1 1.6M6 9.6v.1",
};

/** A drawn sign in the color of the text; what it means is said by the element around it. */
export function Icon({ name }: { readonly name: IconName }): JSX.Element {
  return (
    <svg class="drawn" viewBox="0 0 12 12" aria-hidden="true">
      <path d={LINES[name]} />
    </svg>
  );
}
