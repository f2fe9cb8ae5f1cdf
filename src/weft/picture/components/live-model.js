// The forward pass of GPT-2, BERT and their kin, and of recurrent networks, in plain JavaScript on typed arrays.
//
// Weights have the names of the PyTorch module. N: tokens; W: width; H: heads; D: width of a head.

import { unpack } from "./base.js";
import { liveKernel } from "./live-wasm.js";

// A weight as Float32Array: int8 rows are multiplied by their scales once, at load. `place` gives the array to fill.
function liveTensor(name, packed, place) {
  const values = unpack(packed.values);
  const size = liveSize(packed);
  if (values.data.length !== size) throw new Error(`the weight ${name} is damaged: ${values.data.length} numbers instead of ${size}`);
  const data = place(size);
  if (packed.scales === undefined) data.set(values.data);
  else {
    const scales = unpack(packed.scales).data;
    const width = size / scales.length;
    for (let row = 0, at = 0; row < scales.length; row++) {
      const scale = scales[row];
      for (let n = 0; n < width; n++, at++) data[at] = values.data[at] * scale;
    }
  }
  return { shape: values.shape, data };
}

function liveSize(packed) {
  return packed.values.shape.reduce((product, side) => product * side, 1);
}

// A product of rows with a weight, plus a bias: by WebAssembly where the weight is in its memory, else by liveLinear.
export function liveProduct(kernel, x, rows, weight, bias) {
  if (kernel === null || rows === 0 || !kernel.holds(weight)) return liveLinear(x, rows, weight, bias);
  const [outputs, inputs] = weight.shape;
  const y = new Float32Array(rows * outputs);
  const done = kernel.multiply(x, rows, weight, y);
  for (let row = 0; row < rows; row++) {
    const at = row * outputs;
    for (let out = done; out < outputs; out++) y[at + out] = liveDot(x, row * inputs, weight.data, out * inputs, inputs);
    if (bias !== null) for (let out = 0; out < outputs; out++) y[at + out] += bias[out];
  }
  return y;
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

export function liveDot(x, a, y, b, length) {
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

export const LIVE_FUNCTIONS = {
  relu: (x) => (x > 0 ? x : 0),
  gelu: liveGelu,
  "gelu-tanh": (x) => 0.5 * x * (1 + Math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
  silu: (x) => x / (1 + Math.exp(-x)),
  tanh: Math.tanh,
};

// Run a generator to its end; what it returns.
export function liveDone(steps) {
  for (;;) {
    const step = steps.next();
    if (step.done) return step.value;
  }
}

export class LiveModel {
  constructor(data) {
    this.spec = data.spec;
    const entries = Object.entries(data.weights);
    this.kernel = liveKernel(entries.reduce((sum, [, packed]) => sum + liveSize(packed), 0));
    const place = (size) => (this.kernel === null ? new Float32Array(size) : this.kernel.place(size));
    this.weights = new Map(entries.map(([name, packed]) => [name, liveTensor(name, packed, place)]));
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
    return liveProduct(this.kernel, x, rows, this.weight(`${name}.weight`), bias === undefined ? null : bias.data);
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

  read(ids, segments = null) {
    return liveDone(this.reading(ids, segments));
  }

  // Read a text: {count, states: what each layer gives (states[0]: the embeddings), attention, hidden, gates}.
  // A model that looks back alone keeps what it has computed for the beginning that the text shares with the last one.
  // A generator, so that a page can stop it between two layers: what it has kept changes only at its end.
  *reading(ids, segments = null) {
    const { spec, past } = this;
    let same = 0;
    if (spec.causal && segments === null) while (same < ids.length - 1 && same < past.ids.length && past.ids[same] === ids[same]) same += 1;
    const next = { ids: [...ids], layers: [], hidden: [] };
    const read = spec.kind === "recurrent" ? yield* this.readRecurrent(ids, same, next) : yield* this.readLayers(ids, same, segments, next);
    this.computed = ids.length - same; // tokens that were not kept
    this.past = next;
    return read;
  }

  // All rows of a state: those that were kept, and those that were made now.
  joined(number, made, same, count) {
    const width = made.length / (count - same);
    if (!same) return made;
    const whole = new Float32Array(count * width);
    whole.set(this.past.hidden[number].subarray(0, same * width));
    whole.set(made, same * width);
    return whole;
  }

  *readLayers(ids, same, segments, next) {
    const { spec } = this;
    const rows = ids.length - same;
    let x = this.embed(ids.slice(same), same, segments);
    next.hidden.push(this.joined(0, x, same, ids.length));
    for (let number = 0; number < spec.layers.length; number++) {
      yield;
      const kept = this.keptLayer(same ? this.past.layers[number] : null, same, rows, spec.layers[number]);
      next.layers.push(kept);
      x = this.layer(x, rows, same, spec.layers[number], kept);
      if (number === spec.layers.length - 1 && spec.finalNorm) x = this.norm(x, rows, "final_norm");
      next.hidden.push(this.joined(number + 1, x, same, ids.length));
    }
    return { count: ids.length, states: next.hidden, attention: next.layers.map((layer) => layer.attention), hidden: this.chosen(next.hidden, ids.length) };
  }

  // Room for queries, keys and values of all tokens, with those of the first ones filled in.
  keptLayer(before, first, rows, { heads }) {
    const wide = heads * this.spec.headWidth;
    const kept = { attention: first ? before.attention.slice(0, first) : [] };
    for (const part of ["keys", "values", "queries", "mixed"]) {
      kept[part] = new Float32Array((first + rows) * wide);
      if (first) kept[part].set(before[part].subarray(0, first * wide));
    }
    return kept;
  }

  // One layer again for the whole text, with all that is computed on the way: {attention_norm, qkv, mixed, ...}.
  traced(read, number) {
    const trace = {};
    const layer = this.spec.layers[number];
    const kept = this.keptLayer(null, 0, read.count, layer);
    this.layer(read.states[number].slice(), read.count, 0, layer, kept, trace);
    return { ...trace, ...kept };
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

  // `trace`, where it is given, gets every matrix on the way, for walks.
  layer(x, rows, first, layer, kept, trace = {}) {
    const { spec } = this;
    const { name } = layer;
    const add = (a, b) => b.map((value, n) => value + a[n]);
    if (spec.normBefore) {
      trace.attention_norm = this.norm(x, rows, `${name}.attention_norm`);
      trace.attended = this.attend(trace.attention_norm, rows, first, layer, kept, trace);
      trace.added = add(x, trace.attended);
      trace.feedforward_norm = this.norm(trace.added, rows, `${name}.feedforward_norm`);
      trace.down = this.feedforward(trace.feedforward_norm, rows, name, trace);
      return (trace.sum = add(trace.added, trace.down));
    }
    trace.attended = this.attend(x, rows, first, layer, kept, trace);
    trace.added = add(x, trace.attended);
    trace.attention_norm = this.norm(trace.added, rows, `${name}.attention_norm`);
    trace.down = this.feedforward(trace.attention_norm, rows, name, trace);
    trace.sum = add(trace.attention_norm, trace.down);
    return (trace.feedforward_norm = this.norm(trace.sum, rows, `${name}.feedforward_norm`));
  }

  feedforward(x, rows, name, trace) {
    const { spec } = this;
    const bend = LIVE_FUNCTIONS[spec.activation];
    trace.up = this.linear(x, rows, `${name}.feedforward.up`);
    const { up } = trace;
    if (spec.gated) {
      const inner = up.length / rows / 2;
      trace.bent = new Float32Array(rows * inner);
      for (let row = 0; row < rows; row++) for (let n = 0; n < inner; n++) trace.bent[row * inner + n] = bend(up[2 * row * inner + n]) * up[(2 * row + 1) * inner + n];
    } else {
      trace.bent = new Float32Array(up.length);
      for (let n = 0; n < up.length; n++) trace.bent[n] = bend(up[n]);
    }
    return this.linear(trace.bent, rows, `${name}.feedforward.down`);
  }

  attend(x, rows, first, { name, heads }, kept, trace) {
    const { spec } = this;
    const depth = spec.headWidth;
    const wide = heads * depth;
    const total = first + rows;
    const qkv = this.linear(x, rows, `${name}.attention.qkv`); // N 3 H D
    trace.qkv = spec.positions === "rotary" ? qkv.slice() : qkv;
    if (spec.positions === "rotary") liveTurn(qkv, rows, first, heads, depth);
    const { queries, keys, values, mixed } = kept;
    for (let row = 0; row < rows; row++) {
      [queries, keys, values].forEach((part, n) => part.set(qkv.subarray((3 * row + n) * wide, (3 * row + n + 1) * wide), (first + row) * wide));
    }
    const scale = 1 / Math.sqrt(depth);
    for (let row = 0; row < rows; row++) {
      const place = first + row;
      const seen = spec.causal ? place + 1 : total;
      const weights = new Float32Array(heads * seen);
      for (let head = 0; head < heads; head++) {
        const query = place * wide + head * depth;
        let highest = -Infinity;
        const at = head * seen;
        for (let key = 0; key < seen; key++) {
          let score = liveDot(queries, query, keys, key * wide + head * depth, depth) * scale;
          if (spec.positions === "alibi") score -= spec.slopes[head] * Math.abs(place - key);
          weights[at + key] = score;
          if (score > highest) highest = score;
        }
        let sum = 0;
        for (let key = 0; key < seen; key++) sum += weights[at + key] = Math.exp(weights[at + key] - highest);
        for (let key = 0; key < seen; key++) {
          const share = (weights[at + key] /= sum);
          const value = key * wide + head * depth;
          for (let n = 0; n < depth; n++) mixed[query + n] += share * values[value + n];
        }
      }
      kept.attention.push(weights);
    }
    return this.linear(mixed.subarray(first * wide), rows, `${name}.attention.output`);
  }

  // ---------------------------------------------------------------- recurrent networks

  *readRecurrent(ids, same, next) {
    const { spec } = this;
    const table = this.weight("tokens.weight");
    const size = table.shape[1];
    const rows = ids.length - same;
    let x = new Float32Array(rows * size);
    ids.slice(same).forEach((id, row) => x.set(table.data.subarray(id * size, (id + 1) * size), row * size));
    next.hidden.push(this.joined(0, x, same, ids.length));
    const wide = spec.width * spec.directions;
    for (let number = 0; number < spec.layerCount; number++) {
      yield;
      const made = new Float32Array(rows * wide);
      for (let side = 0; side < spec.directions; side++) {
        const steps = this.recur(x, rows, same ? this.past.layers[number][0].slice(0, same) : [], `layers.${number}.layers.${side}`, side === 1);
        steps.slice(same).forEach(({ hidden }, row) => made.set(hidden, row * wide + side * spec.width));
        if (side === 0) next.layers.push([]);
        next.layers[number].push(steps);
      }
      x = made;
      next.hidden.push(this.joined(number + 1, x, same, ids.length));
    }
    return { count: ids.length, states: next.hidden, attention: [], steps: next.layers, hidden: { data: next.hidden[spec.layerCount], width: wide } };
  }

  // One layer in one direction, after the steps `before`: {hidden, memory, given, own, gates} after each token.
  recur(x, rows, before, name, backwards) {
    const { spec } = this;
    const { width } = spec;
    const given = liveProduct(this.kernel, x, rows, this.weight(`${name}.weight_ih_l0`), this.weight(`${name}.bias_ih_l0`).data);
    const back = this.weight(`${name}.weight_hh_l0`);
    const bias = this.weight(`${name}.bias_hh_l0`).data;
    const count = back.shape[0];
    let { hidden, memory } = before[before.length - 1] ?? { hidden: new Float32Array(width), memory: new Float32Array(width) };
    const steps = [];
    const sigmoid = (value) => 1 / (1 + Math.exp(-value));
    const bend = LIVE_FUNCTIONS[spec.activation];
    for (let step = 0; step < rows; step++) {
      const row = backwards ? rows - 1 - step : step;
      const own = liveProduct(this.kernel, hidden, 1, back, bias);
      const input = given.subarray(row * count, (row + 1) * count);
      const [next, cell, gates] = [new Float32Array(width), new Float32Array(width), new Float32Array(count)];
      for (let n = 0; n < width; n++) {
        if (spec.cell === "rnn") next[n] = bend(input[n] + own[n]);
        else if (spec.cell === "lstm") {
          for (let gate = 0; gate < 4; gate++) {
            const sum = input[gate * width + n] + own[gate * width + n];
            gates[gate * width + n] = gate === 2 ? Math.tanh(sum) : sigmoid(sum); // input, forget, content, output
          }
          cell[n] = gates[width + n] * memory[n] + gates[n] * gates[2 * width + n];
          next[n] = gates[3 * width + n] * Math.tanh(cell[n]);
        } else {
          const reset = sigmoid(input[n] + own[n]);
          const keep = sigmoid(input[width + n] + own[width + n]);
          const fresh = Math.tanh(input[2 * width + n] + reset * own[2 * width + n]);
          [gates[n], gates[width + n], gates[2 * width + n]] = [reset, keep, fresh];
          next[n] = fresh + keep * (hidden[n] - fresh);
        }
      }
      hidden = next;
      memory = cell;
      steps.push({ hidden, memory, given: input, own, gates });
    }
    return [...before, ...(backwards ? steps.reverse() : steps)];
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
    return liveProduct(this.kernel, x, 1, this.weight(head.table), bias);
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

export function liveWave(place, n, width, kind) {
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
