// Which characters the fonts of this browser can draw. One without a glyph is a blank, or a box like that of any other.

const SIZE = 24;
const BASELINE = 18;
const BASE = "a"; // what a mark is drawn with
const MISSING = "\u{10fffe}"; // no font has it: it is no character
const MARK = /^\p{M}$/u;

const drawn = new Map<string, boolean>();
let context: CanvasRenderingContext2D | null = null;

/** Return whether a character can be seen; whatever is not known counts as seen. */
export function isDrawn(character: string): boolean {
  let known = drawn.get(character);
  if (known === undefined) {
    known = MARK.test(character)
      ? differs(BASE + character, BASE) && differs(BASE + character, BASE + MISSING)
      : differs(character, "") && differs(character, MISSING);
    drawn.set(character, known);
  }
  return known;
}

function differs(text: string, other: string): boolean {
  const [picture, second] = [pictureOf(text), pictureOf(other)];
  return picture === null || second === null || picture.some((value, index) => value !== second[index]);
}

function pictureOf(text: string): Uint8ClampedArray | null {
  if (context === null) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = SIZE;
    context = canvas.getContext("2d", { willReadFrequently: true });
    if (context === null) return null;
    context.font = `16px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;
  }
  context.clearRect(0, 0, SIZE, SIZE);
  context.fillText(text, 1, BASELINE);
  return context.getImageData(0, 0, SIZE, SIZE).data;
}
