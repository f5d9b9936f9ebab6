// Tokens, cost and cache hits of the inferences as charts.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { InferenceNode, TraceTree } from "./model";
import { dollars, duration, short } from "./text";
import { colorsOf } from "./waterfall";

interface CurvesProps {
  readonly tree: TraceTree;
  readonly onSelect: (id: string) => void;
}

type Column = (number | null)[];

interface Chart {
  readonly title: string;
  readonly unit: (value: number) => string;
  readonly lines: readonly { name: string; color: string; values: Column; fill?: boolean }[];
}

/** A chart for each figure; the number of the inference is the axis that they share. */
export function Curves({ tree, onSelect }: CurvesProps): JSX.Element {
  const inferences = useMemo(() => tree.nodes.filter((node): node is InferenceNode => node.kind === "inference"), [tree]);
  const charts = useMemo(() => chartsOf(inferences), [inferences]);
  if (inferences.length === 0) return <p class="nothing">No inference is recorded yet.</p>;
  if (charts.length === 0) return <p class="nothing">The inferences have no figures to draw.</p>;
  const pick = (place: number): void => {
    const node = inferences[place];
    if (node !== undefined) onSelect(node.id);
  };
  return (
    <div class="curves">
      {charts.map((chart) => (
        <Plot key={chart.title} chart={chart} length={inferences.length} onPick={pick} />
      ))}
      <p class="muted">By inference, in the order of their start, with those of sub-agents. A click selects one.</p>
    </div>
  );
}

function chartsOf(inferences: readonly InferenceNode[]): Chart[] {
  const usage = (pick: (node: InferenceNode) => number | null): Column => inferences.map(pick);
  const input = usage(({ data }) => data.usage.input_tokens);
  const cached = usage(({ data }) => data.usage.cached_input_tokens);
  const output = usage(({ data }) => data.usage.output_tokens);
  const share = input.map((all, place) => (all ? (100 * (cached[place] ?? 0)) / all : null));
  let [sum, isKnown] = [0, false];
  const cost = inferences.map(({ data }) => {
    isKnown ||= data.cost !== null;
    sum += data.cost ?? 0;
    return isKnown ? sum : null;
  });
  const time = inferences.map(({ data }) => data.ended_at - data.started_at);
  const charts: Chart[] = [
    {
      title: "Tokens",
      unit: short,
      lines: [
        { name: "input", color: "inference", values: input },
        { name: "from cache", color: "call", values: cached, fill: true },
        { name: "output", color: "execution", values: output },
      ],
    },
    { title: "Cost so far", unit: dollars, lines: [{ name: "dollars", color: "waiting", values: cost, fill: true }] },
    { title: "Cache hits", unit: (value) => `${Math.round(value)} %`, lines: [{ name: "of the input", color: "call", values: share, fill: true }] },
    { title: "Time", unit: duration, lines: [{ name: "of the inference", color: "muted", values: time }] },
  ];
  // A chart in which nothing is ever above zero shows nothing, and neither does such a line.
  const says = ({ values }: { values: Column }): boolean => values.some((value) => value !== null && value > 0);
  return charts.map((chart) => ({ ...chart, lines: chart.lines.filter(says) })).filter(({ lines }) => lines.length > 0);
}

const HEIGHT = 150;

interface PlotProps {
  readonly chart: Chart;
  readonly length: number;
  readonly onPick: (place: number) => void;
}

function Plot({ chart, length, onPick }: PlotProps): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  const [theme, setTheme] = useState(0);
  const picked = useRef(onPick);
  picked.current = onPick;
  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const sizes = new ResizeObserver(() => setWidth(element.clientWidth));
    sizes.observe(element);
    const changed = (): void => setTheme((old) => old + 1);
    const themes = new MutationObserver(changed);
    themes.observe(document.documentElement, { attributes: true });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", changed);
    return () => {
      sizes.disconnect();
      themes.disconnect();
      system.removeEventListener("change", changed);
    };
  }, []);
  useEffect(() => {
    const element = place.current;
    if (element === null || width === 0) return;
    const plot = new uPlot(optionsOf(chart, width, length, element), dataOf(chart, length), element);
    const pick = (): void => {
      if (plot.cursor.idx != null) picked.current(plot.cursor.idx);
    };
    plot.over.addEventListener("click", pick);
    return () => plot.destroy();
  }, [chart, width, theme]);
  return (
    <section class="plot" aria-label={chart.title}>
      <h3>{chart.title}</h3>
      <div ref={place} />
    </section>
  );
}

function dataOf(chart: Chart, length: number): uPlot.AlignedData {
  return [Array.from({ length }, (_, index) => index + 1), ...chart.lines.map(({ values }) => values)];
}

function optionsOf(chart: Chart, width: number, length: number, element: HTMLElement): uPlot.Options {
  const color = colorsOf(element);
  const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const format = (_: uPlot, values: number[]): string[] => values.map((value) => (value === null ? "" : chart.unit(value)));
  return {
    width,
    height: HEIGHT,
    cursor: { sync: { key: "inferences" }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: (_, __, high) => [0, high > 0 ? high * 1.05 : 1] } },
    axes: [
      { ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
      { ...axis, size: 64, values: format },
    ],
    legend: { live: true },
    series: [
      { label: "inference" },
      ...chart.lines.map(({ name, color: line, fill }) => ({
        label: name,
        stroke: color(line),
        width: 1.5,
        ...(fill === true ? { fill: color(line).replace("rgb(", "rgba(").replace(")", ", 0.14)") } : {}),
        points: { show: length < 60, size: 4 },
        value: (_: uPlot, value: number | null) => (value === null ? "–" : chart.unit(value)),
      })),
    ],
  };
}
