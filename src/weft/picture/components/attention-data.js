import { bytesOf, halfToFloat } from "./base.js";

// The attention weights of a page: packed by layer, unpacked when a layer is shown, one head at a time.

let attentionHalves = null;

// Float16 bits to numbers by a table: a layer of a long text has millions of them.
function attentionHalfTable() {
  if (!attentionHalves) attentionHalves = Float32Array.from({ length: 65536 }, (_, bits) => halfToFloat(bits));
  return attentionHalves;
}

function attentionShorts(text) {
  return new Uint16Array(bytesOf(text).buffer);
}

export class AttentionData {
  // Weights are texts in elements of their own beside the root, so that a layer that is not shown costs nothing; or,
  // where the content did not come with a page, they are in the layers.
  constructor(root, content) {
    this.stacks = content.stacks;
    this.texts = new Map();
    for (const node of (root.parentElement ?? root).querySelectorAll("script[data-weights]")) this.texts.set(node.dataset.weights, node);
    this.unpackedKey = "";
    this.unpacked = null;
  }

  // Bits of one layer; only the latest one is kept.
  layerBits(stackNumber, layerNumber) {
    const key = `${stackNumber}/${layerNumber}`;
    if (this.unpackedKey !== key) {
      const layer = this.stacks[stackNumber].layers[layerNumber];
      const [values, index] = ["values", "index"].map((name) => layer[name]?.data ?? this.texts.get(`${key}/${name}`)?.textContent);
      this.unpacked = { values: attentionShorts(values), index: index === undefined ? null : attentionShorts(index) };
      this.unpackedKey = key;
    }
    return this.unpacked;
  }

  // One head (or the mean of all, head -1) as a whole matrix: {rows, columns, values}; weights left out are 0.
  matrix(stackNumber, layerNumber, head) {
    const stack = this.stacks[stackNumber];
    const layer = stack.layers[layerNumber];
    const [rows, columns] = [stack.rows.length, stack.columns.length];
    const values = new Float32Array(rows * columns);
    const bits = this.layerBits(stackNumber, layerNumber);
    const heads = head < 0 ? Array.from({ length: layer.heads }, (_, n) => n) : [head];
    for (const number of heads) {
      if (bits.index) attentionScatter(values, bits, number, rows, columns, layer.kept, 1 / heads.length);
      else attentionCopy(values, bits.values, number * rows * columns, 1 / heads.length);
    }
    return { rows, columns, values };
  }
}

function attentionCopy(values, bits, start, share) {
  const table = attentionHalfTable();
  for (let i = 0; i < values.length; i++) values[i] += share * table[bits[start + i]];
}

function attentionScatter(values, bits, head, rows, columns, kept, share) {
  const table = attentionHalfTable();
  let place = head * rows * kept;
  for (let row = 0; row < rows; row++) {
    for (let n = 0; n < kept; n++, place++) values[row * columns + bits.index[place]] += share * table[bits.values[place]];
  }
}

// The part of a matrix that a choice of sides leaves: tokens of the sentences from -> to; null: all of them.
// Tokens are {text, number}: the number is the place in the whole text.
export function attentionPart(stack, matrix, sides) {
  const pick = (names, marks, side) => names.map((text, number) => ({ text, number }))
    .filter(({ number }) => side === null || marks[number] === side);
  const from = pick(stack.rows, stack.row_sides, sides ? sides[0] : null);
  const to = pick(stack.columns, stack.column_sides, sides ? sides[1] : null);
  let values = matrix.values;
  if (sides) {
    values = new Float32Array(from.length * to.length);
    from.forEach((row, i) => to.forEach((column, j) => {
      values[i * to.length + j] = matrix.values[row.number * matrix.columns + column.number];
    }));
  }
  let largest = 0;
  for (let i = 0; i < values.length; i++) if (values[i] > largest) largest = values[i];
  return { from, to, values, largest };
}

// What one token attends to, and what attends to it; null where it is not on that side.
export function attentionRow(part, row) {
  return row < 0 ? null : part.values.subarray(row * part.to.length, (row + 1) * part.to.length);
}

export function attentionColumn(part, column) {
  if (column < 0) return null;
  return Float32Array.from({ length: part.from.length }, (_, row) => part.values[row * part.to.length + column]);
}

// The mean attention that each token gets of all tokens.
export function attentionReceived(part) {
  if (part.received) return part.received; // worked out once: a long text has millions of weights
  const [sums, columns] = [new Float32Array(part.to.length), part.to.length];
  for (let row = 0; row < part.from.length; row++) for (let n = 0; n < columns; n++) sums[n] += part.values[row * columns + n];
  part.received = sums.map((sum) => sum / Math.max(1, part.from.length));
  return part.received;
}

// The places of the largest values, largest first.
export function attentionLargest(values, count) {
  const best = [];
  for (let place = 0; place < values.length; place++) {
    if (best.length === count && values[place] <= values[best[count - 1]]) continue;
    let at = best.length;
    while (at > 0 && values[best[at - 1]] < values[place]) at--;
    best.splice(at, 0, place);
    if (best.length > count) best.pop();
  }
  return best.filter((place) => values[place] > 0);
}

// How strongly a weight is drawn, 0 to 1: square roots keep small weights visible.
export const ATTENTION_SCALES = {
  root: (weight, largest) => Math.sqrt(weight / (largest || 1)),
  linear: (weight, largest) => weight / (largest || 1),
};

// A canvas of this size in CSS pixels, cleared; its drawing context.
export function attentionCanvas(canvas, width, height) {
  const scale = globalThis.devicePixelRatio || 1;
  const [across, down] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== across || canvas.height !== down) Object.assign(canvas, { width: across, height: down });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// A text cut with … where it would be wider than its room.
export function attentionCut(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > room) end--;
  return `${text.slice(0, end)}…`;
}
