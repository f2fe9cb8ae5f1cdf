// The walk of one attention head, or of one recurrent step, from the live numbers: the JSON that walk.js describes.

import { LIVE_FUNCTIONS, liveDot, liveSoftmax, liveWave } from "./live-model.js";
import { liveTop } from "./live-task.js";

const LIVE_CELLS = 1 << 15; // cells of a table of weights, above which only its first columns are in the walk
const LIVE_COLUMNS = 24;

class LiveSteps {
  constructor(title) {
    this.data = { title, intro: "", matrices: {}, steps: [] };
    this.part = "";
  }

  // A matrix of a typed array, row by row; labels may be missing.
  add(id, name, data, rows, { columns = null, shape = null, scale = "diverging", digits = 2, ...made } = {}) {
    const width = data.length / rows.length;
    const across = columns ?? Array.from({ length: width }, (_, n) => String(n));
    this.data.matrices[id] = { name, rows, columns: across, shape: shape ?? [rows.length, width], values: { shape: [rows.length, width], data }, digits, scale, made_from: made.kind === undefined ? null : made };
    return id;
  }

  values(id) {
    return this.data.matrices[id].values.data;
  }

  // Some outputs of a weight (outputs x inputs) as inputs x outputs.
  weights(id, name, { data, shape }, from = 0, to = shape[0]) {
    const inputs = shape[1];
    const count = inputs * (to - from) > LIVE_CELLS ? Math.min(LIVE_COLUMNS, to - from) : to - from;
    const turned = new Float32Array(inputs * count);
    for (let out = 0; out < count; out++) for (let n = 0; n < inputs; n++) turned[n * count + out] = data[(from + out) * inputs + n];
    return this.add(id, name, turned, Array.from({ length: inputs }, (_, n) => String(n)), { shape: [inputs, to - from] });
  }

  // A product with a linear map of the model, or with some of its outputs.
  linear(id, name, model, weight, label, left, data, rows, from = 0, to = undefined) {
    const matrix = model.weight(`${weight}.weight`);
    const right = this.weights(`${id}_weights`, label, matrix, from, to);
    const bias = model.weights.get(`${weight}.bias`);
    const shift = bias && this.add(`${id}_bias`, label.replace("W", "b"), bias.data.slice(from, to), ["b"]);
    this.add(id, name, data, rows, { kind: "product", left, right, ...(shift && { bias: shift }) });
    return [left, "×", right, ...(shift ? ["+", shift] : []), "=", id];
  }

  norm(id, model, weight, left, data, rows, title) {
    const gain = this.add(`${id}_gain`, "gain", model.weight(`${weight}.weight`).data, ["gain"]);
    const shift = model.weights.get(`${weight}.bias`);
    const bias = shift && this.add(`${id}_shift`, "bias", shift.data, ["bias"]);
    const epsilon = model.spec.epsilon;
    const before = this.values(left);
    const width = before.length / rows.length;
    const statistics = new Float32Array(rows.length * 2);
    rows.forEach((_, row) => {
      const own = before.subarray(row * width, (row + 1) * width);
      const mean = own.reduce((sum, value) => sum + value, 0) / width;
      statistics.set([mean, own.reduce((sum, value) => sum + (value - mean) ** 2, 0) / width], 2 * row);
    });
    const open = this.add(`${id}_statistics`, "mean and variance", statistics, rows, { columns: ["mean", "variance"], digits: 4 });
    this.add(id, "norm(x)", data, rows, { kind: "norm", left, gain, epsilon, ...(bias ? { bias } : { rms: true }) });
    const inside = { title: "Open the norm: each token's mean and variance, gain and bias", text: `Mean and variance are of one token's ${width} numbers; gain and bias are learned, one for each column. epsilon is ${epsilon}.`, formula: "(x − mean) / √(variance + ε) · gain + bias", matrices: [open, gain, ...(bias ? [bias] : [])] };
    this.step(title, "Each token's numbers are shifted and scaled to mean 0 and variance 1, then by a learned gain and bias.", "norm(x)", [left, "→", id], { details: [inside] });
    return id;
  }

  sum(id, name, left, right, rows, more = {}) {
    const [a, b] = [this.values(left), this.values(right)];
    return this.add(id, name, a.map((value, n) => value + b[n]), rows, { kind: "add", left, right, ...more });
  }

  step(title, text, formula, matrices, more = {}) {
    this.data.steps.push({ title, text, formula, matrices, part: this.part, ...more });
  }
}

// The columns of one head in N x (parts of heads), such as queries of head 2.
function liveColumns(data, count, wide, from, depth) {
  const made = new Float32Array(count * depth);
  for (let row = 0; row < count; row++) made.set(data.subarray(row * wide + from, row * wide + from + depth), row * depth);
  return made;
}

// `choice`: {layer, head, place, temperature, topK}; names: the tokens as people read them.
export function liveWalk(session, answer, names, choice) {
  const { model } = session;
  return (model.spec.kind === "recurrent" ? liveRecurrentWalk : liveHeadWalk)(session, answer, names, choice);
}

// ---------------------------------------------------------------- one attention head

function liveHeadWalk(session, answer, names, choice) {
  const { model } = session;
  const { spec } = model;
  const { read } = answer;
  const { layer: number, head } = choice;
  const steps = new LiveSteps(`Layer ${number}, head ${head}`);
  let x = liveEmbeddingSteps(steps, model, answer, names);
  steps.part = `Layer ${number}`;
  if (number > 0) {
    x = steps.add("entry", "x", read.states[number], names);
    steps.step(number > 1 ? `Layers 0 to ${number - 1}` : "Layer 0", `The layers below do the same with weights of their own. This is what layer ${number} reads.`, "", [x]);
  }
  const layer = spec.layers[number];
  const trace = model.traced(read, number);
  const entry = x;
  if (spec.normBefore) x = steps.norm("attention_norm", model, `${layer.name}.attention_norm`, x, trace.attention_norm, names, "Norm before attention");
  const attended = liveAttentionSteps(steps, model, layer, head, trace, x, names);
  steps.sum("added", "x + attention", entry, attended, names);
  steps.step("Add", "What attention made is added to what the layer had read: a residual connection.", "x + attention(x)", [entry, "+", attended, "=", "added"]);
  x = "added";
  if (!spec.normBefore) x = steps.norm("attention_norm", model, `${layer.name}.attention_norm`, x, trace.attention_norm, names, "Norm after attention");
  const residual = x;
  if (spec.normBefore) x = steps.norm("feedforward_norm", model, `${layer.name}.feedforward_norm`, x, trace.feedforward_norm, names, "Norm before the feed-forward network");
  liveFeedForwardSteps(steps, model, layer, trace, x, names);
  steps.sum("sum", "x + feed-forward", residual, "down", names);
  steps.step("Add", "A second residual connection.", "x + FFN(x)", [residual, "+", "down", "=", "sum"]);
  x = "sum";
  if (!spec.normBefore) x = steps.norm("feedforward_norm", model, `${layer.name}.feedforward_norm`, x, trace.feedforward_norm, names, "Norm after the feed-forward network");
  steps.part = "Output";
  const last = spec.layers.length - 1;
  if (number < last || spec.finalNorm || spec.choice !== null) {
    const { data } = read.hidden;
    const rest = number < last ? `Layers ${number + 1} to ${last} follow${spec.finalNorm ? ", and a last norm" : ""}. ` : spec.finalNorm ? "After the last layer stands one more norm. " : "";
    x = steps.add("hidden", "hidden states", data, names);
    steps.step(number < last ? "The other layers" : "What the head reads", `${rest}This is what the head of the model reads.`, "", [x]);
  }
  liveOutputSteps(steps, session, answer, x, names, choice);
  return steps.data;
}

function liveEmbeddingSteps(steps, model, { ids, segments, read }, names) {
  const { spec } = model;
  steps.part = "Embeddings";
  const table = model.weight("tokens.weight");
  const width = table.shape[1];
  const used = [...new Set(ids)];
  const row = (id) => table.data.subarray(id * width, (id + 1) * width);
  const gather = (rows) => {
    const data = new Float32Array(rows.length * width);
    rows.forEach((values, n) => data.set(values, n * width));
    return data;
  };
  steps.add("table", "E", gather(used.map(row)), used.map((id) => names[ids.indexOf(id)]), { shape: table.shape });
  let x = steps.add("tokens", "tokens", gather(ids.map(row)), names, { kind: "row", left: "table", indices: ids.map((id) => used.indexOf(id)) });
  steps.step("Embeddings", `Each token is a row of the embedding table E, which has ${table.shape[0].toLocaleString("en")} rows. The walk holds the rows of this text.`, "x_i = E[token_i]", ["table", "→", x]);
  const marks = model.weights.get("segments.weight");
  if (marks !== undefined) {
    steps.add("segments", "segments", gather(ids.map((_, n) => marks.data.subarray((segments === null || marks.shape[0] === 1 ? 0 : segments[n]) * width).subarray(0, width))), names);
    const sum = steps.sum("marked", "x + segments", x, "segments", names);
    steps.step("Segments", "A learned vector tells the first text of a pair from the second.", "x_i + s_i", [x, "+", "segments", "=", sum]);
    x = sum;
  }
  if (spec.positions === "learned" || spec.positions.startsWith("sinusoidal")) {
    const learned = spec.positions === "learned" ? model.weight("positions.table.weight").data : null;
    const place = (n) => (learned === null ? Float32Array.from({ length: width }, (_, at) => liveWave(n, at, width, spec.positions)) : learned.subarray((n + spec.unused) * width, (n + spec.unused + 1) * width));
    steps.add("positions", "positions", gather(ids.map((_, n) => place(n))), ids.map((_, n) => String(n)));
    const sum = steps.sum("placed", "x + positions", x, "positions", names);
    steps.step("Positions", "Attention does not see the order of tokens, so each place has a vector of its own, which is added.", "x_i + p_i", [x, "+", "positions", "=", sum]);
    x = sum;
  }
  if (spec.embeddingNorm) x = steps.norm("embedding_norm", model, "embedding_norm", x, spec.widened ? model.norm(steps.values(x), ids.length, "embedding_norm") : read.states[0], names, "Norm of the embeddings");
  if (spec.widened) {
    steps.step("Widen", "A linear map brings the embeddings to the width of the layers.", "x W^{wide}", steps.linear("widened", "x", model, "widened", "W^{wide}", x, read.states[0], names));
    x = "widened";
  }
  return x;
}

function liveAttentionSteps(steps, model, { name, heads }, head, trace, x, names) {
  const { spec } = model;
  const [count, depth] = [names.length, spec.headWidth];
  const wide = heads * depth;
  const texts = { Q: "Queries: what each token looks for", K: "Keys: what each token is compared by", V: "Values: what each token passes on to those that attend to it" };
  ["Q", "K", "V"].forEach((letter, part) => {
    const from = (part * heads + head) * depth;
    const data = liveColumns(trace.qkv, count, 3 * wide, part * wide + head * depth, depth);
    const shown = steps.linear(letter, letter, model, `${name}.attention.qkv`, `W^${letter}`, x, data, names, from, from + depth);
    steps.step(texts[letter].split(":")[0], `${texts[letter]}.`, `${letter} = x W^${letter} + b^${letter}`, shown);
  });
  let [query, key] = ["Q", "K"];
  if (spec.positions === "rotary") {
    query = steps.add("Qr", "Q turned", liveColumns(trace.queries, count, wide, head * depth, depth), names);
    key = steps.add("Kr", "K turned", liveColumns(trace.keys, count, wide, head * depth, depth), names);
    steps.step("Rotary positions", "Queries and keys are turned by angles that grow with their places.", "", ["Q", "→", "Qr", "K", "→", "Kr"]);
  }
  const grid = (of) => Float32Array.from({ length: count * count }, (_, n) => of(Math.floor(n / count), n % count));
  const [q, k] = [steps.values(query), steps.values(key)];
  const square = { columns: names };
  steps.add("scores", "QK^⊤", grid((i, j) => liveDot(q, i * depth, k, j * depth, depth)), names, { ...square, kind: "product", left: query, right: key, transpose: true });
  steps.step("Logits", "Each query times each key: how well they fit. A row for each query.", "Q K^⊤", [query, "×", key, "=", "scores"]);
  const root = Math.sqrt(depth);
  let last = steps.add("divided", "QK^⊤ / √d_k", steps.values("scores").map((value) => value / root), names, { ...square, kind: "scale", left: "scores", factor: 1 / root, divisor: root });
  steps.step("Divide by √d_k", `Divided by the square root of the head's width, √${depth} = ${root.toPrecision(3)}, so that the softmax does not saturate.`, "Q K^⊤ / √d_k", ["scores", "→", last]);
  if (spec.positions === "alibi") {
    steps.add("bias", "position bias", grid((i, j) => -spec.slopes[head] * Math.abs(i - j)), names, square);
    const sum = steps.sum("biased", "logits + bias", last, "bias", names, square);
    steps.step("Position bias", "The farther a key is, the more is taken from its logit; each head has its own slope.", "", [last, "+", "bias", "=", sum]);
    last = sum;
  }
  if (spec.causal) {
    steps.add("mask", "mask", grid((i, j) => (j > i ? -Infinity : 0)), names, square);
    const masked = steps.sum("masked", "masked logits", last, "mask", names, square);
    steps.step("Mask", "A token may not look at those after it: their logits become minus infinity.", "", [last, "+", "mask", "=", masked]);
    last = masked;
  }
  const weights = grid((i, j) => trace.attention[i][head * (trace.attention[i].length / heads) + j] ?? 0);
  if (spec.causal) for (let i = 0; i < count; i++) weights.fill(0, i * count + i + 1, (i + 1) * count);
  steps.add("weights", "attention", weights, names, { ...square, kind: "softmax", left: last, scale: "sequential" });
  steps.step("Softmax", "Each row becomes weights that sum to 1: how much a token attends to every other.", "softmax", [last, "→", "weights"]);
  steps.add("mixed", "Z", liveColumns(trace.mixed, count, wide, head * depth, depth), names, { kind: "product", left: "weights", right: "V" });
  steps.step("Weighted sum", "The values of all tokens, by those weights: what this head has read.", "Z = softmax(…) V", ["weights", "×", "V", "=", "mixed"]);
  steps.add("heads", "all heads", trace.mixed, names, { kind: "concat", left: "mixed", right: "mixed", offset: head * depth });
  steps.step("All heads", `${heads === 1 ? "There is one head" : `The ${heads} heads of the layer stand side by side`}; this one has the columns from ${head * depth}.`, "", ["mixed", "→", "heads"]);
  steps.step("W^O", "One more linear map mixes the heads.", "Z W^O + b^O", steps.linear("attended", "attention(x)", model, `${name}.attention.output`, "W^O", "heads", trace.attended, names));
  return "attended";
}

function liveFeedForwardSteps(steps, model, { name }, trace, x, names) {
  const { spec } = model;
  steps.step("Feed-forward: up", "Each token by itself: a linear map to more numbers.", "x W^1 + b^1", steps.linear("up", "x W^1", model, `${name}.feedforward.up`, "W^1", x, trace.up, names));
  if (spec.gated) {
    steps.add("bent", `${spec.activation}(a) · b`, trace.bent, names);
    steps.step("Gate", `${spec.activation} of the first half of the columns, times the second half.`, `${spec.activation}(a) · b`, ["up", "→", "bent"]);
  } else {
    steps.add("bent", `${spec.activation}(x W^1)`, trace.bent, names, { kind: "map", left: "up", function: spec.activation });
    steps.step("Activation", `${spec.activation}, number by number.`, `${spec.activation}(x W^1)`, ["up", "→", "bent"]);
  }
  steps.step("Feed-forward: down", "Back to the width of the model.", "… W^2 + b^2", steps.linear("down", "FFN(x)", model, `${name}.feedforward.down`, "W^2", "bent", trace.down, names));
}

// ---------------------------------------------------------------- the output

function liveOutputSteps(steps, session, answer, x, names, choice) {
  const { task, model } = session;
  const { spec } = model;
  const { read } = answer;
  if (spec.head === null || task.kind === "next" || task.kind === "fill") {
    const place = task.kind === "next" ? read.count - 1 : answer.gaps?.[0]?.place;
    if (spec.words !== null && place !== undefined) liveWordSteps(steps, session, answer, x, names, place, choice);
    return;
  }
  const { head } = spec;
  const { data, width } = read.hidden;
  const labels = task.labels && task.labels.length ? task.labels : task.kind === "answer" ? ["start", "end"] : ["value"];
  let rows = names;
  let values = data;
  if (!head.byToken) {
    values = model.pooled(read);
    const own = spec.pooling === "first" ? 0 : spec.pooling === "last" && spec.directions !== 2 ? read.count - 1 : null;
    rows = [own === null ? "text" : names[own]];
    steps.add("summary", "x", values, rows, own === null ? {} : { kind: "row", left: x, indices: [own] });
    steps.step("One vector for the text", own === null ? `The vectors of all tokens become one (${spec.pooling}).` : `The head reads the vector of '${rows[0]}' for the whole text.`, "", [x, "→", "summary"]);
    x = "summary";
  }
  const bent = (id, weight, activation) => {
    const made = model.linear(values, rows.length, weight);
    const shown = steps.linear(id, "x W", model, weight, "W^{h}", x, made, rows);
    values = made.map(LIVE_FUNCTIONS[activation]);
    steps.add(`${id}_bent`, `${activation}(x W)`, values, rows, { kind: "map", left: id, function: activation });
    steps.step("One more layer", `A linear map and ${activation}.`, `${activation}(x W + b)`, [...shown, "→", `${id}_bent`]);
    x = `${id}_bent`;
  };
  if (head.pooler) bent("pooler", "pooler.dense", "tanh");
  if (head.dense) bent("dense", `heads.${head.name}.dense`, head.activation);
  const logits = model.linear(values, rows.length, `heads.${head.name}.output`);
  const shown = steps.linear("logits", "logits", model, `heads.${head.name}.output`, "W^{out}", x, logits, rows);
  for (const id of ["logits", "logits_weights", "logits_bias"]) if (steps.data.matrices[id]) steps.data.matrices[id].columns = labels.slice(0, steps.data.matrices[id].columns.length);
  steps.step("Logits", "A column of weights for each output.", "x W + b", shown);
  if (task.kind === "value") {
    const value = logits[0] * task.spread + task.center;
    steps.step("Value", `The output, times ${task.spread.toPrecision(4)}, plus ${task.center.toPrecision(4)}: in the units of the data this is ${value.toPrecision(4)}.`, "", ["logits"]);
  } else if (task.kind !== "answer") {
    const several = task.kind === "labels";
    const count = labels.length;
    const probabilities = several ? logits.map((value) => 1 / (1 + Math.exp(-value))) : Float32Array.from(rows.flatMap((_, row) => [...liveSoftmax(logits.subarray(row * count, (row + 1) * count))]));
    steps.add("probabilities", "p", probabilities, rows, { columns: labels, scale: "sequential", left: "logits", ...(several ? { kind: "map", function: "sigmoid" } : { kind: "softmax" }) });
    steps.step(several ? "Sigmoid" : "Softmax", several ? "Each label by itself: a probability between 0 and 1." : "Logits become probabilities that sum to 1.", several ? "p = sigmoid(logits)" : "p = softmax(logits)", ["logits", "→", "probabilities"]);
  }
  if (answer.windows.length > 1) steps.step("Windows", `The text has ${answer.windows.length} windows; this walk shows one of them. The answer is the mean over all windows.`, "", []);
}

function liveWordSteps(steps, session, answer, x, names, place, { temperature = 1, topK = 0 }) {
  const { model, tokenizer, task } = session;
  const { words } = model.spec;
  const { data, width } = answer.read.hidden;
  const rows = [names[place]];
  let values = data.slice(place * width, (place + 1) * width);
  steps.add("place", "x", values, rows, { kind: "row", left: x, indices: [place] });
  steps.step("The place that predicts", task.kind === "next" ? "The last token predicts the token after it." : "The vector of the gap predicts the word there.", "", [x, "→", "place"]);
  x = "place";
  if (words.dense) {
    const made = model.linear(values, 1, "heads.words.dense");
    const shown = steps.linear("transform", "x W", model, "heads.words.dense", "W^{h}", x, made, rows);
    const bent = made.map(LIVE_FUNCTIONS[words.activation]);
    steps.add("transform_bent", `${words.activation}(x W)`, bent, rows, { kind: "map", left: "transform", function: words.activation });
    steps.step("One more layer", `A linear map and ${words.activation}.`, "", [...shown, "→", "transform_bent"]);
    values = model.norm(bent, 1, "heads.words.norm");
    x = steps.norm("transform_norm", model, "heads.words.norm", "transform_bent", values, rows, "Norm of the word head");
  }
  if (words.narrow) {
    values = model.linear(values, 1, words.narrow);
    steps.step("Narrow", "A linear map to the width of the table of tokens.", "", steps.linear("narrowed", "x", model, words.narrow, "W^{n}", x, values, rows));
    x = "narrowed";
  }
  const logits = task.kind === "next" ? answer.logits : answer.gaps.find((gap) => gap.place === place).logits;
  const best = liveTop(logits, 10);
  const texts = best.map((id) => liveVisible(tokenizer.shown(id)));
  const table = model.weight(words.table);
  const size = table.shape[1];
  const chosen = new Float32Array(size * best.length);
  best.forEach((id, n) => chosen.set(table.data.subarray(id * size, (id + 1) * size), n * size));
  const tied = words.table === "tokens.weight";
  steps.add("vocabulary", tied ? "E" : "V", chosen, texts, { shape: table.shape });
  const bias = words.bias === null ? null : steps.add("word_bias", "b", Float32Array.from(best, (id) => model.weight(words.bias).data[id]), ["b"], { columns: texts });
  steps.add("logits", "logits", Float32Array.from(best, (id) => logits[id]), rows, { columns: texts, kind: "product", left: x, right: "vocabulary", transpose: true, ...(bias && { bias }) });
  steps.step(tied ? "Product with the embeddings" : "Logits of words", `The vector meets the ${tied ? "embedding" : "output"} of every token: ${logits.length.toLocaleString("en")} logits. The ten highest are shown.`, tied ? "x E^⊤" : "x V^⊤", [x, "×", "vocabulary", "=", "logits"]);
  const heat = task.kind === "next" ? Math.max(temperature, 0.05) : 1;
  const probabilities = liveSoftmax(logits, heat);
  steps.add("probabilities", "p", Float32Array.from(best, (id) => probabilities[id]), rows, { columns: texts, scale: "sequential", digits: 3 });
  steps.step("Softmax", `Over all ${logits.length.toLocaleString("en")} tokens${heat === 1 ? "" : `, with logits divided by the temperature ${heat}`}.`, heat === 1 ? "p = softmax(logits)" : "p = softmax(logits / T)", ["logits", "→", "probabilities"]);
  if (task.kind !== "next") return;
  const greedy = temperature === 0;
  const kept = greedy ? 1 : topK > 0 ? Math.min(topK, best.length) : best.length;
  const total = greedy ? probabilities[best[0]] : (topK > 0 ? liveTop(probabilities, topK) : best).reduce((sum, id) => sum + probabilities[id], 0);
  const lines = best.map((id, n) => [texts[n], probabilities[id].toFixed(4), n < kept ? (probabilities[id] / (topK > 0 || greedy ? total : 1)).toFixed(4) : "–"]);
  const text = greedy ? "Temperature 0: the best token is taken." : topK > 0 ? `Only the ${topK} best tokens can be drawn; their probabilities are scaled to sum to 1.` : "Any token can be drawn, by its probability.";
  steps.step("The token drawn", text, "", [], { tables: [{ name: "Candidates", header: ["token", "p", "drawn with"], rows: lines, marked: greedy ? [[0, 0]] : [] }] });
}

// A token with its spaces and line ends made visible.
export function liveVisible(text) {
  return text === "" ? "∅" : text.replaceAll("\n", "↵").replaceAll("\r", "␍").replaceAll("\t", "⇥").replaceAll(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)).replaceAll("▁", "␣");
}

// ---------------------------------------------------------------- one recurrent step

function liveRecurrentWalk(session, answer, names, { layer, place, temperature, topK }) {
  const { model } = session;
  const { spec } = model;
  const { read } = answer;
  const at = Math.min(place ?? read.count - 1, read.count - 1);
  const cell = spec.cell.toUpperCase();
  const steps = new LiveSteps(`One ${cell} step`);
  steps.part = `${cell} step`;
  const name = `layers.${layer}.layers.0`;
  const own = read.steps[layer][0];
  const now = own[at];
  const before = at > 0 ? own[at - 1] : { hidden: new Float32Array(spec.width), memory: new Float32Array(spec.width) };
  const rows = [names[at]];
  const size = read.states[layer].length / read.count;
  steps.add("x", "x_t", read.states[layer].slice(at * size, (at + 1) * size), rows);
  steps.add("h", "h_{t-1}", before.hidden, [at > 0 ? names[at - 1] : "start"]);
  const product = (id, label, weight, bias, left, data) => {
    steps.weights(`${id}_weights`, label, model.weight(`${name}.${weight}`));
    steps.add(`${id}_bias`, "b", model.weight(`${name}.${bias}`).data, ["b"]);
    steps.add(id, `${label} ${left === "x" ? "x_t" : "h_{t-1}"}`, data, rows, { kind: "product", left, right: `${id}_weights`, bias: `${id}_bias` });
    return [left, "×", `${id}_weights`, "+", `${id}_bias`, "=", id];
  };
  steps.step("The input", `${layer > 0 ? `What layer ${layer - 1} gives for` : "The vector of"} '${rows[0]}' meets the matrix U.`, "U x_t + b", product("ux", "U", "weight_ih_l0", "bias_ih_l0", "x", Float32Array.from(now.given)));
  steps.step("The state before", at > 0 ? `What was carried on after '${names[at - 1]}' meets the matrix W.` : "At the first token the state is zero.", "W h_{t-1} + b", product("wh", "W", "weight_hh_l0", "bias_hh_l0", "h", now.own));
  ({ rnn: liveRnnSteps, lstm: liveLstmSteps, gru: liveGruSteps })[spec.cell](steps, spec, now, before, rows);
  steps.part = "Output";
  const x = steps.add("hidden", "hidden states", read.hidden.data, names);
  steps.step("All states", `The states of the last layer at every token${spec.directions === 2 ? ", of both directions side by side" : ""}: what the head reads.`, "", [x]);
  liveOutputSteps(steps, session, answer, x, names, { temperature, topK });
  return steps.data;
}

// The columns of one gate in both products, and their sum.
function liveGateSum(steps, name, part, width, rows) {
  const cut = (id) => steps.values(id).slice(part * width, (part + 1) * width);
  steps.add(`${name}_u`, "U x", cut("ux"), rows, { kind: "columns", left: "ux", offset: part * width });
  steps.add(`${name}_w`, "W h", cut("wh"), rows, { kind: "columns", left: "wh", offset: part * width });
  return steps.sum(`${name}_sum`, "sum", `${name}_u`, `${name}_w`, rows);
}

function liveGate(steps, name, part, { width }, rows, function_, data, title, text) {
  liveGateSum(steps, name, part, width, rows);
  steps.add(name, name, data, rows, { kind: "map", left: `${name}_sum`, function: function_, scale: function_ === "sigmoid" ? "sequential" : "diverging" });
  steps.step(title, text, `${function_ === "sigmoid" ? "σ" : "tanh"}(U x_t + W h_{t-1})`, [`${name}_u`, "+", `${name}_w`, "=", `${name}_sum`, "→", name]);
}

function liveRnnSteps(steps, { width, activation }, { hidden }, before, rows) {
  steps.sum("total", "sum", "ux", "wh", rows);
  steps.add("new", "h_t", hidden, rows, { kind: "map", left: "total", function: activation });
  steps.step("The new state", `Both are added; ${activation} gives the new state.`, `h_t = ${activation}(U x_t + W h_{t-1})`, ["ux", "+", "wh", "=", "total", "→", "new"]);
}

function liveLstmSteps(steps, spec, { gates, hidden, memory }, before, rows) {
  const { width } = spec;
  const part = (n) => gates.slice(n * width, (n + 1) * width);
  liveGate(steps, "input", 0, spec, rows, "sigmoid", part(0), "Input gate", "How much of the new content enters.");
  liveGate(steps, "forget", 1, spec, rows, "sigmoid", part(1), "Forget gate", "How much of the memory stays.");
  liveGate(steps, "content", 2, spec, rows, "tanh", part(2), "Content", "The new content.");
  liveGate(steps, "output", 3, spec, rows, "sigmoid", part(3), "Output gate", "How much of the memory is shown.");
  const times = (a, b) => steps.values(a).map((value, n) => value * steps.values(b)[n]);
  steps.add("c", "c_{t-1}", before.memory, rows);
  steps.add("kept", "forget · c", times("forget", "c"), rows, { kind: "multiply", left: "forget", right: "c" });
  steps.add("entered", "input · content", times("input", "content"), rows, { kind: "multiply", left: "input", right: "content" });
  steps.add("memory", "c_t", memory, rows, { kind: "add", left: "kept", right: "entered" });
  steps.step("The memory", "Part of the old memory stays and part of the new content enters: a sum, through which gradients pass.", "c_t = forget · c_{t-1} + input · content", ["kept", "+", "entered", "=", "memory"]);
  steps.add("bent", "tanh(c_t)", memory.map(Math.tanh), rows, { kind: "map", left: "memory", function: "tanh" });
  steps.add("new", "h_t", hidden, rows, { kind: "multiply", left: "output", right: "bent" });
  steps.step("The new state", "The output gate shows a part of the memory.", "h_t = output · tanh(c_t)", ["output", "×", "bent", "=", "new"]);
}

function liveGruSteps(steps, spec, { gates, hidden }, before, rows) {
  const { width } = spec;
  const part = (n) => gates.slice(n * width, (n + 1) * width);
  liveGate(steps, "reset", 0, spec, rows, "sigmoid", part(0), "Reset gate", "How much of the old state the new content sees.");
  liveGate(steps, "update", 1, spec, rows, "sigmoid", part(1), "Update gate", "How much of the old state stays.");
  const cut = (id) => steps.values(id).slice(2 * width);
  steps.add("content_u", "U x", cut("ux"), rows, { kind: "columns", left: "ux", offset: 2 * width });
  steps.add("content_w", "W h", cut("wh"), rows, { kind: "columns", left: "wh", offset: 2 * width });
  steps.add("seen", "reset · W h", steps.values("reset").map((value, n) => value * steps.values("content_w")[n]), rows, { kind: "multiply", left: "reset", right: "content_w" });
  steps.sum("content_sum", "sum", "content_u", "seen", rows);
  steps.add("content", "content", part(2), rows, { kind: "map", left: "content_sum", function: "tanh" });
  steps.step("Content", "The reset gate decides how much of the old state the new content sees.", "n = tanh(U x_t + reset · W h_{t-1})", ["content_u", "+", "seen", "=", "content_sum", "→", "content"]);
  steps.add("new", "h_t", hidden, rows, { kind: "gate", left: "update", right: "h", more: "content" });
  steps.step("The new state", "The update gate chooses between the old state and the new content, number by number.", "h_t = update · h_{t-1} + (1 − update) · n", ["update", "h", "content", "→", "new"]);
}
