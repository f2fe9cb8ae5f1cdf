// The forward pass of GPT-2, BERT and their kin, and of recurrent networks, in plain JavaScript on typed arrays.
//
// Weights have the names of the PyTorch module. N: tokens; W: width; H: heads; D: width of a head.

import { unpack } from "./base.js";

// A weight as Float32Array: int8 rows are multiplied by their scales once, at load.
function liveTensor(packed) {
  const values = unpack(packed.values);
  if (packed.scales === undefined) return { shape: values.shape, data: values.data };
  const scales = unpack(packed.scales).data;
  const data = new Float32Array(values.data.length);
  const width = data.length / scales.length;
  for (let row = 0, at = 0; row < scales.length; row++) {
    const scale = scales[row];
    for (let n = 0; n < width; n++, at++) data[at] = values.data[at] * scale;
  }
  return { shape: values.shape, data };
}

// rows x inputs, (outputs x inputs) -> rows x outputs: four rows by two outputs at a time, so that numbers stay in registers.
export function liveLinear(x, rows, weight, bias) {
  const inputs = weight.shape[1];
  const outputs = weight.shape[0];
  const w = weight.data;
  const y = new Float32Array(rows * outputs);
  let row = 0;
  for (; row + 4 <= rows; row += 4) {
    const a = row * inputs;
    const b = a + inputs;
    const c = b + inputs;
    const d = c + inputs;
    let out = 0;
    for (; out + 2 <= outputs; out += 2) {
      const p = out * inputs;
      const q = p + inputs;
      let a0 = 0, a1 = 0, b0 = 0, b1 = 0, c0 = 0, c1 = 0, d0 = 0, d1 = 0;
      for (let n = 0; n < inputs; n++) {
        const u = w[p + n];
        const v = w[q + n];
        const xa = x[a + n], xb = x[b + n], xc = x[c + n], xd = x[d + n];
        a0 += xa * u; a1 += xa * v;
        b0 += xb * u; b1 += xb * v;
        c0 += xc * u; c1 += xc * v;
        d0 += xd * u; d1 += xd * v;
      }
      const u = bias === null ? 0 : bias[out];
      const v = bias === null ? 0 : bias[out + 1];
      const at = row * outputs + out;
      y[at] = a0 + u; y[at + 1] = a1 + v;
      y[at + outputs] = b0 + u; y[at + outputs + 1] = b1 + v;
      y[at + 2 * outputs] = c0 + u; y[at + 2 * outputs + 1] = c1 + v;
      y[at + 3 * outputs] = d0 + u; y[at + 3 * outputs + 1] = d1 + v;
    }
    if (out < outputs) for (let n = row; n < row + 4; n++) y[n * outputs + out] = liveDot(x, n * inputs, w, out * inputs, inputs) + (bias === null ? 0 : bias[out]);
  }
  for (; row < rows; row++) {
    for (let out = 0; out < outputs; out++) y[row * outputs + out] = liveDot(x, row * inputs, w, out * inputs, inputs) + (bias === null ? 0 : bias[out]);
  }
  return y;
}

function liveDot(x, a, y, b, length) {
  let one = 0, two = 0, three = 0, four = 0;
  let n = 0;
  for (; n + 4 <= length; n += 4) {
    one += x[a + n] * y[b + n];
    two += x[a + n + 1] * y[b + n + 1];
    three += x[a + n + 2] * y[b + n + 2];
    four += x[a + n + 3] * y[b + n + 3];
  }
  for (; n < length; n++) one += x[a + n] * y[b + n];
  return one + two + three + four;
}

export function liveSoftmax(scores, temperature = 1) {
  let highest = -Infinity;
  for (const score of scores) if (score > highest) highest = score;
  const powers = Float64Array.from(scores, (score) => Math.exp((score - highest) / temperature));
  let sum = 0;
  for (const power of powers) sum += power;
  return powers.map((power) => power / sum);
}

// The share of the normal distribution below x, exact to twelve digits: a table, and Taylor's series from its points.
const LIVE_STEP = 128;
const LIVE_EDGE = 9;
const LIVE_NORMAL = (() => {
  const count = LIVE_EDGE * LIVE_STEP;
  const below = new Float64Array(count + 1);
  for (let n = 0; n <= count; n++) {
    const x = n / LIVE_STEP;
    if (x < 5) {
      let term = x;
      let sum = x;
      for (let k = 1; k < 200 && term > 1e-18 * sum; k++) {
        term *= (x * x) / (2 * k + 1);
        sum += term;
      }
      below[n] = 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
    } else {
      let fraction = x;
      for (let k = 60; k > 0; k--) fraction = x + k / fraction;
      below[n] = 1 - Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI) / fraction;
    }
  }
  return below;
})();

function liveGelu(x) {
  const size = Math.abs(x);
  if (size >= LIVE_EDGE) return x > 0 ? x : 0;
  const n = Math.round(size * LIVE_STEP);
  const at = n / LIVE_STEP;
  const h = size - at;
  const density = Math.exp((-at * at) / 2) * 0.3989422804014327;
  const below = LIVE_NORMAL[n] + h * density * (1 - (at * h) / 2 + ((at * at - 1) * h * h) / 6 - ((at ** 3 - 3 * at) * h ** 3) / 24);
  return x * (x > 0 ? below : 1 - below);
}

const LIVE_FUNCTIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu: liveGelu,
  "gelu-tanh": (x) => 0.5 * x * (1 + Math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};

export class LiveModel {
  constructor(data) {
    this.spec = data.spec;
    this.weights = new Map(Object.entries(data.weights).map(([name, packed]) => [name, liveTensor(packed)]));
    this.forget();
  }

  // Drop what was computed for the texts before.
  forget() {
    this.past = { ids: [], layers: [], hidden: [] };
  }

  weight(name) {
    const tensor = this.weights.get(name);
    if (tensor === undefined) throw new Error(`the page has no weight ${name}`);
    return tensor;
  }

  linear(x, rows, name) {
    const bias = this.weights.get(`${name}.bias`);
    return liveLinear(x, rows, this.weight(`${name}.weight`), bias === undefined ? null : bias.data);
  }

  norm(x, rows, name, epsilon = this.spec.epsilon) {
    const gain = this.weight(`${name}.weight`).data;
    const shift = this.weights.get(`${name}.bias`);
    const width = gain.length;
    const y = new Float32Array(x.length);
    for (let row = 0; row < rows; row++) {
      const at = row * width;
      let mean = 0;
      if (shift !== undefined) {
        for (let n = 0; n < width; n++) mean += x[at + n];
        mean /= width;
      }
      let variance = 0;
      for (let n = 0; n < width; n++) variance += (x[at + n] - mean) ** 2;
      const scale = 1 / Math.sqrt(variance / width + epsilon);
      for (let n = 0; n < width; n++) y[at + n] = (x[at + n] - mean) * scale * gain[n] + (shift === undefined ? 0 : shift.data[n]);
    }
    return y;
  }

  // Read a text: {count, states: what each layer gives (states[0]: the embeddings), attention, hidden, gates}.
  // A model that looks back alone keeps what it has computed for the beginning that the text shares with the last one.
  read(ids, segments = null) {
    const { spec, past } = this;
    let same = 0;
    if (spec.causal && segments === null) while (same < ids.length - 1 && same < past.ids.length && past.ids[same] === ids[same]) same += 1;
    this.computed = ids.length - same; // tokens that were not kept
    past.ids = [...ids];
    if (spec.kind === "recurrent") return this.readRecurrent(ids, same);
    const rows = ids.length - same;
    let x = this.embed(ids.slice(same), same, segments);
    const keep = (number, made, width) => {
      const before = past.hidden[number];
      const whole = new Float32Array(ids.length * width);
      if (before !== undefined && same) whole.set(before.subarray(0, same * width));
      whole.set(made, same * width);
      past.hidden[number] = whole;
    };
    keep(0, x, spec.width);
    spec.layers.forEach((layer, number) => {
      x = this.layer(x, rows, same, layer, number);
      const last = number === spec.layers.length - 1;
      if (last && spec.finalNorm) x = this.norm(x, rows, "final_norm");
      keep(number + 1, x, spec.width);
    });
    const states = past.hidden;
    return { count: ids.length, states, attention: past.layers.map((layer) => layer.attention), hidden: this.chosen(states, ids.length) };
  }

  // What the heads read: the last layer, or several of them together.
  chosen(states, count) {
    const { choice, width } = this.spec;
    if (choice === null) return { data: states[states.length - 1], width };
    const parts = choice.numbers.map((number) => states[number]);
    if (choice.how === "concat") {
      const wide = width * parts.length;
      const data = new Float32Array(count * wide);
      parts.forEach((part, n) => {
        for (let row = 0; row < count; row++) data.set(part.subarray(row * width, (row + 1) * width), row * wide + n * width);
      });
      return { data, width: wide };
    }
    const data = new Float32Array(count * width);
    const share = choice.how === "mean" ? 1 / parts.length : 1;
    parts.forEach((part, n) => {
      const weight = choice.weights.length ? choice.weights[n] : share;
      for (let at = 0; at < data.length; at++) data[at] += part[at] * weight;
    });
    return { data, width };
  }

  embed(ids, first, segments) {
    const { spec } = this;
    const table = this.weight("tokens.weight");
    const width = table.shape[1];
    const x = new Float32Array(ids.length * width);
    const positions = spec.positions === "learned" ? this.weight("positions.table.weight").data : null;
    const marks = this.weights.get("segments.weight");
    ids.forEach((id, row) => {
      for (let n = 0; n < width; n++) {
        let value = table.data[id * width + n];
        if (marks !== undefined) value += marks.data[(segments === null || marks.shape[0] === 1 ? 0 : segments[row]) * width + n];
        if (positions !== null) value += positions[(first + row + spec.unused) * width + n];
        else if (spec.positions.startsWith("sinusoidal")) value += liveWave(first + row, n, width, spec.positions);
        x[row * width + n] = value;
      }
    });
    const normed = spec.embeddingNorm ? this.norm(x, ids.length, "embedding_norm") : x;
    return spec.widened ? this.linear(normed, ids.length, "widened") : normed;
  }

  layer(x, rows, first, layer, number) {
    const { spec } = this;
    const { name } = layer;
    const add = (a, b) => {
      for (let n = 0; n < a.length; n++) b[n] += a[n];
      return b;
    };
    if (spec.normBefore) {
      x = add(x, this.attend(this.norm(x, rows, `${name}.attention_norm`), rows, first, layer, number));
      return add(x, this.feedforward(this.norm(x, rows, `${name}.feedforward_norm`), rows, name));
    }
    x = this.norm(add(x, this.attend(x, rows, first, layer, number)), rows, `${name}.attention_norm`);
    return this.norm(add(x, this.feedforward(x, rows, name)), rows, `${name}.feedforward_norm`);
  }

  feedforward(x, rows, name) {
    const { spec } = this;
    const bend = LIVE_FUNCTIONS[spec.activation];
    const up = this.linear(x, rows, `${name}.feedforward.up`);
    if (!spec.gated) {
      for (let n = 0; n < up.length; n++) up[n] = bend(up[n]);
      return this.linear(up, rows, `${name}.feedforward.down`);
    }
    const inner = up.length / rows / 2;
    const y = new Float32Array(rows * inner);
    for (let row = 0; row < rows; row++) for (let n = 0; n < inner; n++) y[row * inner + n] = bend(up[2 * row * inner + n]) * up[(2 * row + 1) * inner + n];
    return this.linear(y, rows, `${name}.feedforward.down`);
  }

  attend(x, rows, first, { name, heads }, number) {
    const { spec, past } = this;
    const depth = spec.headWidth;
    const wide = heads * depth;
    const total = first + rows;
    const qkv = this.linear(x, rows, `${name}.attention.qkv`); // N 3 H D
    if (spec.positions === "rotary") liveTurn(qkv, rows, first, heads, depth);
    const before = past.layers[number];
    const layer = { keys: new Float32Array(total * wide), values: new Float32Array(total * wide), queries: new Float32Array(total * wide), mixed: new Float32Array(total * wide), attention: [] };
    if (first) {
      for (const part of ["keys", "values", "queries", "mixed"]) layer[part].set(before[part].subarray(0, first * wide));
      layer.attention = before.attention.slice(0, first);
    }
    past.layers[number] = layer;
    for (let row = 0; row < rows; row++) {
      layer.queries.set(qkv.subarray(3 * row * wide, (3 * row + 1) * wide), (first + row) * wide);
      layer.keys.set(qkv.subarray((3 * row + 1) * wide, (3 * row + 2) * wide), (first + row) * wide);
      layer.values.set(qkv.subarray((3 * row + 2) * wide, (3 * row + 3) * wide), (first + row) * wide);
    }
    const scale = 1 / Math.sqrt(depth);
    const mixed = new Float32Array(rows * wide);
    for (let row = 0; row < rows; row++) {
      const place = first + row;
      const seen = spec.causal ? place + 1 : total;
      const weights = new Float32Array(heads * seen);
      for (let head = 0; head < heads; head++) {
        const query = place * wide + head * depth;
        let highest = -Infinity;
        const at = head * seen;
        for (let key = 0; key < seen; key++) {
          let score = liveDot(layer.queries, query, layer.keys, key * wide + head * depth, depth) * scale;
          if (spec.positions === "alibi") score -= spec.slopes[head] * Math.abs(place - key);
          weights[at + key] = score;
          if (score > highest) highest = score;
        }
        let sum = 0;
        for (let key = 0; key < seen; key++) sum += weights[at + key] = Math.exp(weights[at + key] - highest);
        for (let key = 0; key < seen; key++) {
          const share = (weights[at + key] /= sum);
          const value = key * wide + head * depth;
          for (let n = 0; n < depth; n++) mixed[row * wide + head * depth + n] += share * layer.values[value + n];
        }
      }
      layer.attention.push(weights);
    }
    layer.mixed.set(mixed, first * wide);
    return this.linear(mixed, rows, `${name}.attention.output`);
  }

  // ---------------------------------------------------------------- recurrent networks

  readRecurrent(ids, same) {
    const { spec, past } = this;
    const table = this.weight("tokens.weight");
    const size = table.shape[1];
    const rows = ids.length - same;
    let x = new Float32Array(rows * size);
    ids.slice(same).forEach((id, row) => x.set(table.data.subarray(id * size, (id + 1) * size), row * size));
    const whole = (number, made, width) => {
      const all = new Float32Array(ids.length * width);
      if (same) all.set(past.hidden[number].subarray(0, same * width));
      all.set(made, same * width);
      past.hidden[number] = all;
    };
    whole(0, x, size);
    const wide = spec.width * spec.directions;
    const gates = [];
    for (let number = 0; number < spec.layerCount; number++) {
      const joined = new Float32Array(rows * wide);
      for (let side = 0; side < spec.directions; side++) {
        const made = this.recur(x, rows, same, `layers.${number}.layers.${side}`, `${number}.${side}`, side === 1);
        for (let row = 0; row < rows; row++) joined.set(made.subarray(row * spec.width, (row + 1) * spec.width), row * wide + side * spec.width);
      }
      x = joined;
      whole(number + 1, x, wide);
      gates.push(past.layers[`${number}.0`]);
    }
    return { count: ids.length, states: past.hidden, attention: [], gates, hidden: { data: past.hidden[spec.layerCount], width: wide } };
  }

  // One layer in one direction; what is carried after each token is kept.
  recur(x, rows, first, name, slot, backwards) {
    const { spec, past } = this;
    const width = spec.width;
    const given = liveLinear(x, rows, this.weight(`${name}.weight_ih_l0`), this.weight(`${name}.bias_ih_l0`).data);
    const back = this.weight(`${name}.weight_hh_l0`);
    const bias = this.weight(`${name}.bias_hh_l0`).data;
    const count = back.shape[0];
    const before = first ? past.layers[slot].slice(0, first) : [];
    let hidden = first ? before[first - 1].hidden : new Float32Array(width);
    let memory = first ? before[first - 1].memory : new Float32Array(width);
    const made = new Float32Array(rows * width);
    const steps = [];
    const sigmoid = (value) => 1 / (1 + Math.exp(-value));
    for (let step = 0; step < rows; step++) {
      const row = backwards ? rows - 1 - step : step;
      const own = liveLinear(hidden, 1, back, bias);
      const at = row * count;
      const next = new Float32Array(width);
      const cell = new Float32Array(width);
      for (let n = 0; n < width; n++) {
        if (spec.cell === "rnn") next[n] = LIVE_FUNCTIONS[spec.activation](given[at + n] + own[n]);
        else if (spec.cell === "lstm") {
          const sum = (gate) => given[at + gate * width + n] + own[gate * width + n];
          cell[n] = sigmoid(sum(1)) * memory[n] + sigmoid(sum(0)) * Math.tanh(sum(2));
          next[n] = sigmoid(sum(3)) * Math.tanh(cell[n]);
        } else {
          const reset = sigmoid(given[at + n] + own[n]);
          const keep = sigmoid(given[at + width + n] + own[width + n]);
          const fresh = Math.tanh(given[at + 2 * width + n] + reset * own[2 * width + n]);
          next[n] = fresh + keep * (hidden[n] - fresh);
        }
      }
      hidden = next;
      memory = cell;
      steps.push({ hidden, memory });
      made.set(hidden, row * width);
    }
    past.layers[slot] = [...before, ...(backwards ? steps.reverse() : steps)];
    return made;
  }

  // ---------------------------------------------------------------- heads

  // Logits of all words at one place.
  words(read, place) {
    const { spec } = this;
    const { data, width } = read.hidden;
    let x = data.slice(place * width, (place + 1) * width);
    const head = spec.words;
    if (head.dense) {
      x = this.linear(x, 1, "heads.words.dense");
      const bend = LIVE_FUNCTIONS[head.activation];
      for (let n = 0; n < x.length; n++) x[n] = bend(x[n]);
      x = this.norm(x, 1, "heads.words.norm");
    }
    if (head.narrow) x = this.linear(x, 1, head.narrow);
    const bias = head.bias === null ? null : this.weight(head.bias).data;
    return liveLinear(x, 1, this.weight(head.table), bias);
  }

  // Logits of a label head: for the text, or for every token.
  labels(read) {
    const { head } = this.spec;
    let x = read.hidden.data;
    let rows = read.count;
    if (!head.byToken) {
      x = this.pooled(read);
      rows = 1;
    }
    if (head.pooler) x = this.linear(x, 1, "pooler.dense").map(Math.tanh);
    if (head.dense) {
      const bend = LIVE_FUNCTIONS[head.activation];
      x = this.linear(x, rows, `heads.${head.name}.dense`).map((value) => bend(value));
    }
    return this.linear(x, rows, `heads.${head.name}.output`);
  }

  pooled({ hidden: { data, width }, count }) {
    const { pooling } = this.spec;
    const row = (n) => data.slice(n * width, (n + 1) * width);
    if (count === 0) return new Float32Array(width);
    if (pooling === "first") return row(0);
    if (pooling === "last") {
      const last = row(count - 1);
      const half = this.spec.kind === "recurrent" ? this.spec.width : width;
      last.set(data.subarray(half, width), half); // each direction ends at another end
      return last;
    }
    const made = new Float32Array(width).fill(pooling === "max" ? -Infinity : 0);
    let shares = new Array(count).fill(1 / count);
    if (pooling === "attention") {
      const dense = this.linear(data, count, "pooler.dense");
      const query = this.weight("pooler.query").data;
      shares = liveSoftmax(shares.map((_, n) => dense.subarray(n * width, (n + 1) * width).reduce((sum, value, at) => sum + Math.tanh(value) * query[at], 0)));
    }
    for (let n = 0; n < count; n++) {
      for (let at = 0; at < width; at++) {
        const value = data[n * width + at];
        made[at] = pooling === "max" ? Math.max(made[at], value) : made[at] + shares[n] * value;
      }
    }
    return made;
  }
}

function liveWave(place, n, width, kind) {
  const half = Math.ceil(width / 2);
  const halves = kind === "sinusoidal-halves";
  const pair = halves ? n % half : n >> 1;
  const angle = place * Math.exp(2 * pair * (-Math.log(10000) / width));
  return Math.fround((halves ? n < half : n % 2 === 0) ? Math.sin(angle) : Math.cos(angle));
}

// Queries and keys (N 3 H D) turned by their places.
function liveTurn(qkv, rows, first, heads, depth) {
  const half = depth / 2;
  const wide = heads * depth;
  for (let row = 0; row < rows; row++) {
    for (let n = 0; n < half; n++) {
      const angle = (first + row) * Math.exp(2 * n * (-Math.log(10000) / depth));
      const cosine = Math.fround(Math.cos(angle));
      const sine = Math.fround(Math.sin(angle));
      for (let part = 0; part < 2; part++) {
        for (let head = 0; head < heads; head++) {
          const at = (3 * row + part) * wide + head * depth + n;
          const [a, b] = [qkv[at], qkv[at + half]];
          qkv[at] = a * cosine - b * sine;
          qkv[at + half] = b * cosine + a * sine;
        }
      }
    }
  }
}
