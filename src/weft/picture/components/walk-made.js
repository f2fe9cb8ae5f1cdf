import { format, unpack } from "./base.js";

// How each number of a walk was made of others; the kinds of `made_from` are listed at the top of walk.js.

const WALK_TERMS = 6; // terms of a sum that are written out

const WALK_MAPS = {
  relu: (x) => Math.max(x, 0),
  gelu: (x) => 0.5 * x * (1 + walkErf(x / Math.SQRT2)),
  "gelu-tanh": (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  exp: Math.exp,
  log: Math.log,
};

function walkErf(x) { // Abramowitz and Stegun 7.1.26, exact to 1.5e-7
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const rest = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return Math.sign(x) * (1 - rest * Math.exp(-x * x));
}

// The matrices with their numbers unpacked: data (row by row), height, width, and the largest size of a number.
export function walkOpened(matrices) {
  const opened = {};
  for (const [id, matrix] of Object.entries(matrices)) {
    const { shape, data } = typeof matrix.values.data === "string" ? unpack(matrix.values) : matrix.values;
    let most = 0;
    for (const value of data) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
    opened[id] = { digits: 2, scale: "diverging", ...matrix, id, data, height: shape[0], width: shape[1], most: most || 1 };
    opened[id].shape ??= [...shape];
  }
  return opened;
}

function walkAt(matrix, row, column) {
  const inside = matrix && row >= 0 && row < matrix.height && column >= 0 && column < matrix.width;
  return inside ? matrix.data[row * matrix.width + column] : NaN;
}

// Each kind gets {made, left, right, ..., i, j, show} and gives {terms, value, cells, rule}. `cells` are
// [matrix, row, column] with null for a whole row or column; `terms` and `rule` are texts.
const WALK_KINDS = {
  product({ made, left, right, bias, i, j, show }) {
    const terms = [];
    let value = 0;
    for (let k = 0; k < left.width; k++) {
      const pair = [walkAt(left, i, k), made.transpose ? walkAt(right, j, k) : walkAt(right, k, j)];
      value += pair[0] * pair[1];
      if (k < WALK_TERMS) terms.push(`${show(pair[0])}·${show(pair[1])}`);
    }
    if (left.width > WALK_TERMS) terms.push(`… (${left.width} products)`);
    if (bias) {
      value += walkAt(bias, 0, j);
      terms.push(`${show(walkAt(bias, 0, j))} (${bias.name})`);
    }
    const line = made.transpose ? `row ${right.rows[j]}` : `column ${right.columns[j]}`;
    const cells = [[left, i, null], made.transpose ? [right, j, null] : [right, null, j], ...(bias ? [[bias, 0, j]] : [])];
    return { terms: terms.join(" + "), value, cells, rule: `row ${left.rows[i]} of ${left.name} times ${line} of ${right.name}` };
  },

  add(given) { return walkPair(given, "+", "plus", (a, b) => a + b); },
  multiply(given) { return walkPair(given, "·", "times", (a, b) => a * b); },

  scale({ made, left, i, j, show, digits }) {
    const a = walkAt(left, i, j);
    const divides = made.divisor !== undefined;
    const terms = divides ? `${show(a)} / ${format(made.divisor, digits)}` : `${show(a)} · ${format(made.factor, digits)}`;
    return { terms, value: a * made.factor, cells: [[left, i, j]], rule: `${left.name} ${divides ? "divided by" : "times"} one number` };
  },

  softmax({ left, i, j }) {
    const a = walkAt(left, i, j);
    const powers = [];
    let sum = 0, count = 0;
    for (let k = 0; k < left.width; k++) {
      const x = walkAt(left, i, k);
      sum += Math.exp(x - a);
      if (x === -Infinity) continue;
      if (++count <= WALK_TERMS) powers.push(`exp(${format(x, 2)})`);
    }
    const others = count > WALK_TERMS ? ` + … (${count} terms)` : "";
    const hidden = a === -Infinity;
    return { terms: hidden ? "exp(−∞) / sum" : `exp(${format(a, 2)}) / (${powers.join(" + ")}${others})`,
      value: hidden ? 0 : 1 / sum, cells: [[left, i, null]], rule: `softmax of row ${left.rows[i]} of ${left.name}` };
  },

  norm({ made, left, gain, bias, i, j, show, digits }) {
    let mean = 0, variance = 0;
    if (!made.rms) for (let k = 0; k < left.width; k++) mean += walkAt(left, i, k) / left.width;
    for (let k = 0; k < left.width; k++) variance += (walkAt(left, i, k) - mean) ** 2 / left.width;
    const a = walkAt(left, i, j), g = walkAt(gain, 0, j), b = bias ? walkAt(bias, 0, j) : 0;
    const top = made.rms ? show(a) : `(${format(a, digits)} − ${show(mean)})`;
    const rule = made.rms ? `mean square ${format(variance, 4)}, then gain` : `mean ${format(mean, 4)}, variance ${format(variance, 4)}, then gain and bias`;
    return { terms: `${top} / √(${format(variance, 4)} + ${made.epsilon}) · ${show(g)}${bias ? ` + ${show(b)}` : ""}`,
      value: ((a - mean) / Math.sqrt(variance + made.epsilon)) * g + b,
      cells: [[left, i, null], [gain, 0, j], ...(bias ? [[bias, 0, j]] : [])], rule: `row ${left.rows[i]} of ${left.name}: ${rule}` };
  },

  row({ made, left, i, j }) {
    const row = made.indices[i];
    return { terms: `row ${left.rows[row]}, column ${left.columns[j]}`, value: walkAt(left, row, j), cells: [[left, row, null]], rule: `read from ${left.name}` };
  },

  columns({ made, left, i, j }) {
    const column = j + made.offset;
    return { terms: `column ${left.columns[column] ?? column} of ${left.name}`, value: walkAt(left, i, column), cells: [[left, i, column]], rule: "a part of the columns" };
  },

  concat({ made, right, i, j }) {
    const column = j - made.offset;
    return { terms: `column ${column} of ${right.name}`, value: walkAt(right, i, column), cells: [[right, i, column]], rule: "set side by side" };
  },

  gate({ left, right, more, i, j, show }) {
    const [a, b, c] = [left, right, more].map((side) => walkAt(side, i, j));
    return { terms: `${show(a)}·${show(b)} + (1 − ${show(a)})·${show(c)}`, value: a * b + (1 - a) * c,
      cells: [[left, i, j], [right, i, j], [more, i, j]], rule: `${left.name} weighs ${right.name} against ${more.name}` };
  },

  map({ made, left, i, j, digits }) {
    const a = walkAt(left, i, j);
    return { terms: `${made.function}(${format(a, digits)})`, value: WALK_MAPS[made.function](a), cells: [[left, i, j]], rule: `${made.function} of ${left.name}` };
  },
};

function walkPair({ left, right, i, j, show }, sign, word, combine) {
  const row = right.height === 1 ? 0 : i;
  const a = walkAt(left, i, j), b = walkAt(right, row, j);
  return { terms: `${show(a)} ${sign} ${show(b)}`, value: combine(a, b), cells: [[left, i, j], [right, row, j]], rule: `${left.name} ${word} ${right.name}` };
}

// How a cell was made; null for given numbers and where what they are made from is not stored.
export function walkMade(all, matrix, i, j) {
  const made = matrix.made_from;
  if (!made) return null;
  const digits = Math.max(3, matrix.digits);
  const show = (x) => (x < 0 ? `(${format(x, digits)})` : format(x, digits));
  const sides = Object.fromEntries(["left", "right", "bias", "gain", "more"].map((side) => [side, all[made[side]]]));
  const result = WALK_KINDS[made.kind]({ made, ...sides, i, j, show, digits });
  return Number.isNaN(result.value) ? null : result;
}
