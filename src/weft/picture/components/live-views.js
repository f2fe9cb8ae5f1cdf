// What a live page draws: the answer, the tokens, attention and hidden states.

import { cssColor, diverging, el, format, hidpiCanvas, hideTooltip, inkOn, lineColor, sequential, tooltip } from "./base.js";
import { liveVisible } from "./live-walk.js";

const LIVE_TOP = 10; // next words and fillings that are shown
const LIVE_WIDE = 256; // attention is drawn for texts up to so many tokens
const LIVE_NAMED = 80; // and with the names of its tokens up to so many
const LIVE_THUMB = 52; // pixels of a head at a glance
const LIVE_LABELS = 30; // bars that are shown

// ---------------------------------------------------------------- the answer

function liveBar(name, probability, options = {}) {
  const fill = el("span", { class: "live-fill", style: { width: `${100 * Math.min(1, Math.max(0, probability))}%` } });
  const label = options.click ? el("button", { type: "button", class: "live-name", title: "Append this token", on: { click: options.click } }, name) : el("span", { class: "live-name", title: name }, name);
  const kind = `${options.chosen ? " chosen" : ""}${options.left ? " left" : ""}`;
  return el("li", { class: `live-bar${kind}` }, label, el("span", { class: "live-track" }, fill), el("span", { class: "live-number", text: livePercent(probability) }));
}

function livePercent(probability) {
  return `${(100 * probability).toFixed(1)} %`;
}

function liveVerdict(text, detail = "") {
  return el("p", { class: "live-verdict" }, text, detail === "" ? null : el("span", { text: detail }));
}

export function liveResult(view, [text, second], append) {
  const { session, data: { task }, answer } = view;
  switch (task.kind) {
    case "next": {
      const rows = session.ranked(answer.logits, LIVE_TOP, Math.max(0.05, view.temperature), view.temperature === 0 ? 1 : view.topK);
      return [
        el("ul", { class: "live-bars" }, rows.map((row) => liveBar(liveVisible(row.text), row.probability, { click: () => append(row.id), left: row.left }))),
        el("p", { class: "note", text: "Choose a token to append it." }),
      ];
    }
    case "fill":
      if (!answer.gaps.length) return [el("p", { class: "note", text: `Write ${task.maskName} where a word is missing.` })];
      return answer.gaps.map((gap, n) =>
        el("div", { class: "live-gap" }, answer.gaps.length > 1 ? el("h3", { text: `Gap ${n + 1}` }) : null, el("ul", { class: "live-bars" }, session.ranked(gap.logits, LIVE_TOP).map((row, k) => liveBar(liveVisible(row.text), row.probability, { chosen: k === 0 })))),
      );
    case "value":
      return [liveVerdict(format(answer.value))];
    case "tags":
      return [liveEntities(answer, task, text)];
    case "answer":
      return liveAnswers(answer, second);
    default:
      return liveLabels(answer, task);
  }
}

function liveLabels(answer, task) {
  const several = task.kind === "labels";
  const chosen = (n) => (several ? answer.probabilities[n] >= task.thresholds[n] : n === answer.best);
  const order = answer.probabilities.map((_, n) => n);
  if (order.length > 6) order.sort((a, b) => answer.probabilities[b] - answer.probabilities[a]);
  const names = order.filter(chosen).map((n) => task.labels[n]);
  const verdict = several ? liveVerdict(names.join(", ") || "no label") : liveVerdict(task.labels[answer.best], livePercent(answer.probabilities[answer.best]));
  const bars = order.slice(0, LIVE_LABELS).map((n) => liveBar(task.labels[n], answer.probabilities[n], { chosen: chosen(n) }));
  const rest = order.length > LIVE_LABELS ? el("p", { class: "note", text: `The ${LIVE_LABELS} likeliest of ${order.length} labels.` }) : null;
  return [verdict, el("ul", { class: "live-bars" }, bars), ...(rest ? [rest] : [])];
}

function liveAnswers({ answers, none, noAnswer }, context) {
  const letters = [...context];
  const text = ({ start, end }) => letters.slice(start, end).join("");
  if (!answers.length) return [el("p", { class: "note", text: "Write a context that holds the answer." })];
  const [best] = answers;
  const shown = none ? [context] : [letters.slice(0, best.start).join(""), el("mark", {}, text(best)), letters.slice(best.end).join("")];
  const bars = answers.slice(0, 3).map((answer, n) => liveBar(text(answer), answer.score, { chosen: n === 0 && !none }));
  if (noAnswer) bars.push(liveBar("no answer", noAnswer, { chosen: none }));
  return [liveVerdict(none ? "no answer" : text(best)), el("ul", { class: "live-bars" }, bars), el("p", { class: "live-entities" }, shown)];
}

function liveEntities(answer, task, text) {
  const letters = [...text];
  const plain = task.scheme === "plain";
  const spans = plain ? answer.words.map((word) => ({ ...word, label: word.tag })) : answer.spans;
  const kinds = [...new Set(task.labels.map((label) => (plain ? label : label.slice(2))).filter((kind) => kind !== ""))];
  const line = el("p", { class: "live-entities" });
  let done = 0;
  for (const span of spans) {
    line.append(letters.slice(done, span.start).join(""));
    const color = lineColor(Math.max(0, kinds.indexOf(span.label)));
    line.append(el("mark", { style: { borderColor: color }, title: livePercent(span.score) }, letters.slice(span.start, span.end).join(""), el("span", { class: "live-tag", style: { color }, text: span.label })));
    done = span.end;
  }
  line.append(letters.slice(done).join(""));
  const rows = plain ? [] : spans.map((span) => liveBar(`${span.label}: ${letters.slice(span.start, span.end).join("")}`, span.score, { chosen: true }));
  return el("div", {}, line, rows.length ? el("ul", { class: "live-bars" }, rows) : null, spans.length ? null : el("p", { class: "note", text: "No entities in this text." }));
}

// ---------------------------------------------------------------- tokens

export function liveTokens(box, view, shown, choose) {
  const { session, data } = view;
  const looking = view.chosen === null || data.spec.kind !== "transformer" ? null : liveRow(view, shown, view.chosen);
  const focused = box.contains(document.activeElement) ? [...box.children].indexOf(document.activeElement) : -1;
  box.replaceChildren(
    ...shown.ids.map((id, place) => {
      const weight = looking === null ? 0 : looking[place] ?? 0;
      const shade = looking === null ? null : sequential(Math.sqrt(weight) * 0.75);
      const name = liveVisible(session.tokenizer.shown(id));
      const percent = looking === null ? "" : `, ${livePercent(weight)} of the attention of the chosen token`;
      const side = shown.sides[place];
      return el("button", {
        type: "button",
        class: `live-token${side === null ? " special" : side === 1 ? " second" : ""}`,
        "aria-pressed": String(place === view.chosen),
        "aria-label": `token ${place + 1}: ${name}${percent}`,
        style: shade === null ? {} : { background: shade, color: inkOn(shade) },
        on: { click: () => choose(place), mousemove: (event) => tooltip(event, `${name}\nid ${id}, place ${place}${percent}`), mouseleave: hideTooltip },
      }, name);
    }),
  );
  if (focused >= 0) box.children[Math.min(focused, box.children.length - 1)]?.focus();
}

// The attention of one token in the chosen head.
function liveRow(view, { read }, place) {
  const row = read.attention[view.layer][place];
  const seen = row.length / view.data.spec.layers[view.layer].heads;
  return row.subarray(view.head * seen, (view.head + 1) * seen);
}

// ---------------------------------------------------------------- attention

// The colors of weights from 0 to 1 as bytes, for images; the root makes small ones visible.
function liveColors() {
  return Array.from({ length: 256 }, (_, n) => sequential(Math.sqrt(n / 255)).match(/\d+/g).map(Number));
}

// The matrix of a head as an image of one pixel for each weight.
function liveImage(rows, heads, head, colors) {
  const count = rows.length;
  const canvas = new OffscreenCanvas(count, count);
  const image = new ImageData(count, count);
  for (let place = 0; place < count; place++) {
    const seen = rows[place].length / heads;
    for (let key = 0; key < count; key++) {
      const weight = key < seen ? rows[place][head * seen + key] : 0;
      const [red, green, blue] = colors[Math.min(255, Math.round(255 * weight))];
      image.data.set([red, green, blue, 255], 4 * (place * count + key));
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

export function liveAttention(box, view, shown, choose) {
  const { data: { spec } } = view;
  const { read } = shown;
  const count = shown.ids.length;
  if (count > LIVE_WIDE) {
    box.replaceChildren(el("p", { class: "note", text: `Attention is drawn for texts up to ${LIVE_WIDE} tokens; this one has ${count}.` }));
    return;
  }
  const colors = liveColors();
  const grid = el("div", { class: "live-grid", role: "group", "aria-label": "All heads" });
  read.attention.forEach((rows, layer) => {
    const { heads } = spec.layers[layer];
    const line = el("div", { class: "live-layer" }, el("span", { class: "live-layer-name", text: `Layer ${layer}` }));
    for (let head = 0; head < heads; head++) {
      const { canvas, context } = hidpiCanvas(LIVE_THUMB, LIVE_THUMB);
      context.imageSmoothingEnabled = count > LIVE_THUMB;
      context.drawImage(liveImage(rows, heads, head, colors), 0, 0, LIVE_THUMB, LIVE_THUMB);
      const chosen = layer === view.layer && head === view.head;
      const name = `Layer ${layer}, head ${head}`;
      line.append(el("button", { type: "button", class: "live-head", "aria-pressed": String(chosen), "aria-label": name, title: name, on: { click: () => choose(layer, head) } }, canvas));
    }
    grid.append(line);
  });
  const large = view.lines && count <= LIVE_NAMED ? liveLines(view, shown) : liveSquare(view, shown, colors);
  const focused = box.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  box.replaceChildren(el("div", { class: "live-inside" }, el("div", {}, el("h3", { text: "All heads" }), grid), large));
  if (focused !== null) box.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
}

function liveName(view, id, most = 14) {
  const text = liveVisible(view.session.tokenizer.shown(id));
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

function liveLarge(view, canvas, hint) {
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Attention of layer ${view.layer}, head ${view.head}`);
  return el("div", { class: "live-large" }, el("h3", { text: `Layer ${view.layer}, head ${view.head}` }), el("p", { class: "note", text: hint }), el("div", { class: "live-scroll" }, canvas));
}

// The tokens twice, with lines from those that attend to those that they attend to.
function liveLines(view, shown) {
  const [step, top, left, right, width] = [20, 6, 120, 220, 340];
  const { canvas, context } = hidpiCanvas(width, shown.ids.length * step + 2 * top);
  context.font = `13px ${cssColor("--font") || "system-ui, sans-serif"}`;
  context.textBaseline = "middle";
  const [ink, muted, accent] = [cssColor("--ink"), cssColor("--muted"), cssColor("--accent")];
  const y = (place) => top + place * step + step / 2;
  shown.ids.forEach((id, place) => {
    const lit = view.chosen === null || place === view.chosen;
    context.fillStyle = place === view.chosen ? accent : lit ? ink : muted;
    context.textAlign = "right";
    context.fillText(liveName(view, id), left - 6, y(place));
    context.textAlign = "left";
    context.fillStyle = ink;
    context.fillText(liveName(view, id), right + 6, y(place));
    if (!lit) return;
    const weights = liveRow(view, shown, place);
    const highest = weights.reduce((high, weight) => Math.max(high, weight), 1e-6);
    for (let key = 0; key < weights.length; key++) {
      const share = view.chosen === null ? weights[key] : weights[key] / highest; // one token's lines are told apart
      if (share < 0.03) continue;
      context.globalAlpha = Math.min(1, share * 0.85 + 0.05);
      context.strokeStyle = accent;
      context.lineWidth = 0.5 + 3 * share;
      context.beginPath();
      context.moveTo(left, y(place));
      context.bezierCurveTo(left + 45, y(place), right - 45, y(key), right, y(key));
      context.stroke();
      context.globalAlpha = 1;
    }
  });
  return liveLarge(view, canvas, view.chosen === null ? "From each token on the left to those that it attends to. Choose a token above to see its own lines." : "The chosen token attends to these.");
}

// The matrix of the chosen head: a row for each token that attends.
function liveSquare(view, shown, colors) {
  const { data: { spec } } = view;
  const { heads } = spec.layers[view.layer];
  const rows = shown.read.attention[view.layer];
  const count = shown.ids.length;
  const named = count <= LIVE_NAMED;
  const cell = Math.max(3, Math.min(22, Math.floor(420 / count)));
  const small = cell >= 12 ? 12 : Math.max(8, cell);
  const edge = named && cell >= 8 ? 84 : 0;
  const size = count * cell;
  const { canvas, context } = hidpiCanvas(edge + size, edge + size);
  context.imageSmoothingEnabled = false;
  context.drawImage(liveImage(rows, heads, view.head, colors), edge, edge, size, size);
  context.strokeStyle = cssColor("--rule");
  context.strokeRect(edge + 0.5, edge + 0.5, size - 1, size - 1);
  if (edge) {
    context.font = `${small}px ${cssColor("--font") || "system-ui, sans-serif"}`;
    context.textBaseline = "middle";
    shown.ids.forEach((id, place) => {
      context.fillStyle = cssColor(place === view.chosen ? "--accent" : "--ink");
      context.textAlign = "right";
      context.fillText(liveName(view, id, 11), edge - 5, edge + (place + 0.5) * cell);
      context.save();
      context.translate(edge + (place + 0.5) * cell, edge - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(liveName(view, id, 11), 0, 0);
      context.restore();
    });
  }
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor((event.clientY - box.top - edge) / cell), Math.floor((event.clientX - box.left - edge) / cell)];
  };
  canvas.addEventListener("mousemove", (event) => {
    const [row, column] = place(event);
    if (row < 0 || column < 0 || row >= count || column >= count) return hideTooltip();
    const seen = rows[row].length / heads;
    const weight = column < seen ? rows[row][view.head * seen + column] : 0;
    return tooltip(event, `${liveName(view, shown.ids[row], 30)} → ${liveName(view, shown.ids[column], 30)}\n${livePercent(weight)}`);
  });
  canvas.addEventListener("mouseleave", hideTooltip);
  return liveLarge(view, canvas, "A row for each token: how much it attends to every other. Point at a cell for its value.");
}

// ---------------------------------------------------------------- recurrent networks

// The numbers of one layer: a row for each token; of an LSTM or GRU the gates too.
export function liveStates(box, view, shown) {
  const { data: { spec } } = view;
  const count = shown.ids.length;
  if (count > LIVE_WIDE) {
    box.replaceChildren(el("p", { class: "note", text: `States are drawn for texts up to ${LIVE_WIDE} tokens; this one has ${count}.` }));
    return;
  }
  const steps = shown.read.steps[view.layer][0];
  const gates = { rnn: [], lstm: ["input gate", "forget gate", "content", "output gate"], gru: ["reset gate", "update gate", "content"] }[spec.cell];
  const part = (n) => steps.map((step) => step.gates.subarray(n * spec.width, (n + 1) * spec.width));
  const pictures = [liveHeat("State", steps.map((step) => step.hidden), view, shown)];
  if (spec.cell === "lstm") pictures.push(liveHeat("Memory", steps.map((step) => step.memory), view, shown));
  gates.forEach((name, n) => pictures.push(liveHeat(name[0].toUpperCase() + name.slice(1), part(n), view, shown, name.endsWith("gate"))));
  const side = spec.directions === 2 ? " This is the direction from left to right." : "";
  box.replaceChildren(el("p", { class: "note", text: `What layer ${view.layer} computes at each token: a row for each token, a column for each number. Blue is positive, orange negative; gates run from 0 to 1.${side}` }), el("div", { class: "live-heats" }, pictures));
}

function liveHeat(name, rows, view, shown, gate = false) {
  const [edge, across, height] = [92, 220, rows.length > 40 ? 6 : 15];
  const width = rows[0].length;
  const most = gate ? 1 : Math.max(1e-6, ...rows.map((row) => row.reduce((high, value) => Math.max(high, Math.abs(value)), 0)));
  const image = new ImageData(width, rows.length);
  const colors = Array.from({ length: 257 }, (_, n) => (gate ? sequential(n / 256) : diverging(n / 128 - 1)).match(/\d+/g).map(Number));
  rows.forEach((row, place) => row.forEach((value, n) => image.data.set([...colors[Math.round(gate ? 256 * value : 128 + (128 * value) / most)], 255], 4 * (place * width + n))));
  const small = new OffscreenCanvas(width, rows.length);
  small.getContext("2d").putImageData(image, 0, 0);
  const { canvas, context } = hidpiCanvas(edge + across, rows.length * height);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, edge, 0, across, rows.length * height);
  if (height > 8) {
    context.font = `12px ${cssColor("--font") || "system-ui, sans-serif"}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    shown.ids.forEach((id, place) => {
      context.fillStyle = cssColor(place === view.chosen ? "--accent" : "--ink");
      context.fillText(liveName(view, id, 11), edge - 6, (place + 0.5) * height);
    });
  }
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [place, n] = [Math.floor((event.clientY - box.top) / height), Math.floor(((event.clientX - box.left - edge) / across) * width)];
    if (n < 0 || n >= width || place < 0 || place >= rows.length) return hideTooltip();
    return tooltip(event, `${name} at ${liveName(view, shown.ids[place], 30)}\nnumber ${n}: ${format(rows[place][n])}`);
  });
  canvas.addEventListener("mouseleave", hideTooltip);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${name} by token`);
  return el("figure", { class: "live-heat" }, el("figcaption", { text: name }), canvas);
}
