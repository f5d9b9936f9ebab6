// Places on the time axis. Long times in which nothing runs, such as a night before an approval, are drawn short.

/** Something that took time. */
export interface Span {
  readonly start: number;
  readonly end: number;
}

/** A stretch of the axis. */
interface Segment extends Span {
  readonly from: number;
  readonly to: number;
  readonly isGap: boolean;
}

const SHORTEST_GAP_MS = 2000;
const GAP_SHARE = 0.1;
const GAP_WIDTH = 0.03;

/** Maps moments to places between 0 and 1. */
export class TimeScale {
  private readonly segments: readonly Segment[];

  constructor(
    spans: readonly Span[],
    readonly start: number,
    readonly end: number,
    cutsGaps: boolean,
  ) {
    this.segments = segmentsOf(spans, start, Math.max(end, start + 1), cutsGaps);
  }

  /** Return the place of a moment. */
  place(moment: number): number {
    const { segments } = this;
    let [low, high] = [0, segments.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((segments[middle] as Segment).end < moment) low = middle + 1;
      else high = middle;
    }
    const segment = segments[low] as Segment;
    const share = (Math.min(Math.max(moment, segment.start), segment.end) - segment.start) / (segment.end - segment.start);
    return segment.from + share * (segment.to - segment.from);
  }

  /** Return the moment at a place. */
  moment(place: number): number {
    const segment = this.segments.find(({ to }) => place <= to) ?? (this.segments.at(-1) as Segment);
    const share = segment.to === segment.from ? 0 : (place - segment.from) / (segment.to - segment.from);
    return segment.start + share * (segment.end - segment.start);
  }

  /** The stretches in which nothing runs and that are drawn short. */
  get gaps(): readonly { from: number; to: number; ms: number }[] {
    return this.segments.filter(({ isGap }) => isGap).map(({ from, to, start, end }) => ({ from, to, ms: end - start }));
  }

  /** Return the ticks of the axis: places, and the time since the start as milliseconds. */
  ticks(wanted: number): readonly { place: number; ms: number }[] {
    const busy = this.segments.filter(({ isGap }) => !isGap);
    const total = busy.reduce((sum, { start, end }) => sum + end - start, 0);
    const step = niceStep(total / wanted);
    const ticks: { place: number; ms: number }[] = [];
    let last = -1;
    for (const segment of busy) {
      const first = Math.ceil((segment.start - this.start) / step) * step;
      for (let ms = first; this.start + ms <= segment.end; ms += step) {
        const place = this.place(this.start + ms);
        if (place - last > 0.5 / wanted) ticks.push({ place, ms });
        last = ticks.at(-1)?.place ?? -1;
      }
    }
    return ticks;
  }
}

function segmentsOf(spans: readonly Span[], start: number, end: number, cutsGaps: boolean): Segment[] {
  const gaps = cutsGaps ? gapsOf(spans, start, end) : [];
  const idle = gaps.reduce((sum, gap) => sum + gap.end - gap.start, 0);
  const busy = end - start - idle;
  const width = 1 - gaps.length * GAP_WIDTH;
  const segments: Segment[] = [];
  let [at, from] = [start, 0];
  const add = (to: number, share: number, isGap: boolean): void => {
    segments.push({ start: at, end: to, from, to: from + share, isGap });
    at = to;
    from += share;
  };
  for (const gap of gaps) {
    if (gap.start > at) add(gap.start, (width * (gap.start - at)) / busy, false);
    add(gap.end, GAP_WIDTH, true);
  }
  if (end > at) add(end, 1 - from, false);
  return segments;
}

/** Return the longest stretches in which nothing runs. */
function gapsOf(spans: readonly Span[], start: number, end: number): Span[] {
  const sorted = spans.filter((span) => span.end >= start && span.start <= end).sort((a, b) => a.start - b.start);
  const gaps: Span[] = [];
  let busyUntil = start;
  for (const span of sorted) {
    if (span.start - busyUntil > SHORTEST_GAP_MS) gaps.push({ start: busyUntil, end: span.start });
    busyUntil = Math.max(busyUntil, span.end);
  }
  if (end - busyUntil > SHORTEST_GAP_MS) gaps.push({ start: busyUntil, end });
  gaps.sort((a, b) => b.end - b.start - (a.end - a.start));
  const kept: Span[] = [];
  let busy = end - start;
  for (const gap of gaps.slice(0, 8)) {
    if (gap.end - gap.start < GAP_SHARE * busy) break;
    busy -= gap.end - gap.start;
    kept.push(gap);
  }
  if (busy <= 0) return [];
  return kept.sort((a, b) => a.start - b.start);
}

function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const units = [1, 2, 5, 10].map((factor) => factor * power);
  return units.find((step) => step >= rough) ?? 10 * power;
}
