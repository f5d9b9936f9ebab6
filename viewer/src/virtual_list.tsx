// Lists of which only the visible rows are in the page.

import { Component, createRef, type ComponentChildren, type RefObject } from "preact";

const OVERSCAN = 8;
/** Browsers round, or refuse, elements that are higher than this. */
const MAX_HEIGHT = 8_000_000;

interface ListProps {
  /** Where the list is kept while it is on the page, for its methods. */
  readonly control?: { current: VirtualList | null };
  readonly count: number;
  readonly rowHeight: number;
  readonly renderRow: (index: number) => ComponentChildren;
  /** Called with the first and the last visible row. */
  readonly onRange?: (first: number, last: number) => void;
  /** Attributes of the element that scrolls. */
  readonly attributes?: Record<string, unknown>;
  readonly className?: string;
  /** Whether the end stays in view when rows are added. */
  readonly follows?: boolean;
}

interface ListState {
  readonly first: number;
  readonly last: number;
  /** The place of the first row, relative to the top of the element that scrolls. */
  readonly offset: number;
}

/** A list of rows of one height; far more rows than an element can be high are scrolled in proportion. */
export class VirtualList extends Component<ListProps, ListState> {
  override state: ListState = { first: 0, last: 40, offset: 0 };
  readonly element: RefObject<HTMLDivElement | null> = createRef();
  private readonly observer = new ResizeObserver(() => this.update());

  override componentDidMount(): void {
    if (this.props.control !== undefined) this.props.control.current = this;
    if (this.element.current !== null) this.observer.observe(this.element.current);
    this.update();
  }

  override componentWillUnmount(): void {
    if (this.props.control?.current === this) this.props.control.current = null;
    this.observer.disconnect();
  }

  override componentDidUpdate(former: ListProps): void {
    const element = this.element.current;
    if (element === null || former.count === this.props.count) return;
    if (this.props.follows === true) element.scrollTop = element.scrollHeight;
    this.update();
  }

  private get height(): number {
    return Math.min(this.props.count * this.props.rowHeight, MAX_HEIGHT);
  }

  /** Scroll as little as possible so that a row is visible. */
  scrollTo(index: number, toCenter = false): void {
    const element = this.element.current;
    if (element === null) return;
    const { count, rowHeight } = this.props;
    const ratio = this.ratio(element.clientHeight);
    const top = index * rowHeight;
    const room = element.clientHeight - rowHeight;
    const current = element.scrollTop * ratio;
    if (top >= current + rowHeight && top <= current + room - rowHeight) return;
    const wanted = toCenter || index === 0 || index === count - 1 ? top - room / 2 : top < current + rowHeight ? top - 2 * rowHeight : top - room + 2 * rowHeight;
    element.scrollTop = Math.max(0, wanted) / ratio;
    this.update();
  }

  /** How many pixels of rows one pixel of scrolling is. */
  private ratio(viewHeight: number): number {
    const full = this.props.count * this.props.rowHeight;
    return full <= MAX_HEIGHT ? 1 : (full - viewHeight) / (MAX_HEIGHT - viewHeight);
  }

  private readonly update = (): void => {
    const element = this.element.current;
    if (element === null) return;
    const { count, rowHeight, onRange } = this.props;
    const at = element.scrollTop * this.ratio(element.clientHeight);
    const seen = Math.ceil(element.clientHeight / rowHeight);
    const top = Math.floor(at / rowHeight);
    const first = Math.max(0, top - OVERSCAN);
    const last = Math.min(count, top + seen + OVERSCAN);
    const offset = element.scrollTop - (at - first * rowHeight);
    const { state } = this;
    if (state.first !== first || state.last !== last || state.offset !== offset) this.setState({ first, last, offset });
    onRange?.(top, Math.min(count - 1, top + seen));
  };

  override render(): ComponentChildren {
    const { count, rowHeight, renderRow, attributes, className } = this.props;
    const { first, last, offset } = this.state;
    const rows: ComponentChildren[] = [];
    for (let index = first; index < Math.min(last, count); index++) {
      rows.push(
        <div key={index} class="virtual-row" role="presentation" style={{ top: `${offset + (index - first) * rowHeight}px`, height: `${rowHeight}px` }}>
          {renderRow(index)}
        </div>,
      );
    }
    return (
      <div {...attributes} ref={this.element} class={`virtual ${className ?? ""}`} onScroll={this.update}>
        <div class="virtual-space" role="presentation" style={{ height: `${this.height}px` }}>
          {rows}
        </div>
      </div>
    );
  }
}

// --- rows of different heights -----------------------------------------------------------------------------------------

interface BlocksProps {
  /** Where the list is kept while it is on the page, for its methods. */
  readonly control?: { current: VirtualBlocks | null };
  readonly count: number;
  /** The height of a block that has not been shown yet, in pixels. */
  readonly estimate: number;
  readonly renderBlock: (index: number) => ComponentChildren;
  readonly attributes?: Record<string, unknown>;
  readonly className?: string;
  readonly follows?: boolean;
}

/** A list of blocks whose heights are known once they are shown. */
export class VirtualBlocks extends Component<BlocksProps, { first: number; last: number }> {
  override state = { first: 0, last: 12 };
  readonly element: RefObject<HTMLDivElement | null> = createRef();
  /** The heights in pixels; 0 for a block that has not been shown yet. */
  private readonly heights: number[] = [];
  private frame = 0;
  private readonly window: RefObject<HTMLDivElement | null> = createRef();
  private readonly observer = new ResizeObserver(() => {
    this.measure();
    this.update();
  });
  private sought = -1;

  override componentDidMount(): void {
    if (this.props.control !== undefined) this.props.control.current = this;
    if (this.element.current !== null) this.observer.observe(this.element.current);
    if (this.window.current !== null) this.observer.observe(this.window.current);
    this.update();
  }

  override componentWillUnmount(): void {
    if (this.props.control?.current === this) this.props.control.current = null;
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  override componentDidUpdate(former: BlocksProps): void {
    this.measure();
    const element = this.element.current;
    if (element !== null && former.count !== this.props.count && this.props.follows === true) {
      element.scrollTop = element.scrollHeight;
    }
    if (this.sought >= 0) this.scrollTo(this.sought);
    // Once per frame: what was measured can bring other blocks into view, which are measured in their turn.
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(this.update);
  }

  /** Scroll so that a block is at the top. */
  scrollTo(index: number): void {
    const element = this.element.current;
    if (element === null) return;
    const wanted = this.offsetOf(index);
    element.scrollTop = wanted;
    // The blocks around it are measured when they are shown, which moves it.
    this.sought = this.heights[index] === 0 ? index : -1;
    this.update();
  }

  private heightOf(index: number): number {
    return this.heights[index] || this.props.estimate;
  }

  private offsetOf(index: number): number {
    let offset = 0;
    for (let i = 0; i < index; i++) offset += this.heightOf(i);
    return offset;
  }

  private measure(): void {
    const [element, window] = [this.element.current, this.window.current];
    if (element === null || window === null) return;
    let moved = 0;
    let offset = this.offsetOf(this.state.first);
    [...window.children].forEach((child, place) => {
      const index = this.state.first + place;
      const height = (child as HTMLElement).offsetHeight;
      const former = this.heightOf(index);
      if (offset + former <= element.scrollTop) moved += height - former;
      this.heights[index] = height;
      offset += former;
    });
    // What is in view stays where it is.
    if (moved !== 0 && this.sought < 0) element.scrollTop += moved;
  }

  private readonly update = (): void => {
    const element = this.element.current;
    if (element === null) return;
    const { count } = this.props;
    while (this.heights.length < count) this.heights.push(0);
    const [top, bottom] = [element.scrollTop - 400, element.scrollTop + element.clientHeight + 400];
    let [first, offset] = [0, 0];
    while (first < count - 1 && offset + this.heightOf(first) < top) offset += this.heightOf(first++);
    let last = first;
    while (last < count && offset < bottom) offset += this.heightOf(last++);
    if (this.state.first !== first || this.state.last !== last) this.setState({ first, last });
  };

  override render(): ComponentChildren {
    const { count, renderBlock, attributes, className } = this.props;
    const first = Math.min(this.state.first, Math.max(0, count - 1));
    const last = Math.min(this.state.last, count);
    const blocks = Array.from({ length: Math.max(0, last - first) }, (_, place) => (
      <div key={first + place} class="block">
        {renderBlock(first + place)}
      </div>
    ));
    let [above, below] = [this.offsetOf(first), 0];
    for (let index = last; index < count; index++) below += this.heightOf(index);
    return (
      <div {...attributes} ref={this.element} class={`virtual ${className ?? ""}`} onScroll={this.update}>
        <div role="presentation" style={{ height: `${above}px` }} />
        <div ref={this.window} role="presentation">
          {blocks}
        </div>
        <div role="presentation" style={{ height: `${below}px` }} />
      </div>
    );
  }
}
