// The page of a live model: type a text, and tokens, attention and what the model says of it follow every key.

import { cssColor, el, format, hidpiCanvas, hideTooltip, lineColor, onTheme, sequential, slider, tooltip } from "./base.js";
import { LiveSession } from "./live-task.js";

const LIVE_TOP = 10; // next words and fillings that are shown
const LIVE_GRID = 8; // pixels of the smallest cell of a head in the grid
const LIVE_WIDE = 160; // attention is drawn for texts up to so many tokens

export function live(root, data) {
  const began = performance.now();
  const session = new LiveSession(data);
  const { task } = data;
  const view = { session, data, chosen: null, layer: 0, head: 0, temperature: task.kind === "next" ? 0.8 : 1, topK: 40, answer: null, running: false };
  const input = el("textarea", { id: "live-text", rows: 3, spellcheck: "false", "aria-label": task.pair ? "First text" : "Text" });
  const second = task.pair ? el("textarea", { rows: 2, spellcheck: "false", "aria-label": "Second text" }) : null;
  input.value = task.sample;
  if (second) second.value = "It was told well.";
  const time = el("span", { class: "live-time", "aria-live": "off" });
  const note = el("p", { class: "live-note", role: "status", hidden: true });
  const result = el("div", { class: "live-result", "aria-live": "polite" });
  const tokens = el("div", { class: "live-tokens", role: "group", "aria-label": "Tokens" });
  const inside = el("div", { class: "live-inside" });
  const parts = [el("div", { class: "live-input" }, input, second), controls(), note, heading(), result];
  parts.push(el("h2", { text: "Tokens" }), tokens);
  if (data.spec.kind === "transformer") parts.push(el("h2", { text: "Attention" }), el("p", { class: "note", text: "All heads at a glance: choose one to enlarge it. Choose a token above to see where it looks." }), inside);
  else parts.push(el("h2", { text: "Hidden state" }), el("p", { class: "note", text: "What the last layer carries from token to token: blue is positive, orange negative." }), inside);
  const facts = el("p", { class: "live-facts note" });
  root.replaceChildren(...parts, facts);

  function heading() {
    const names = { next: "Next word", fill: "Words for the gaps", tags: "Entities", value: "Value" };
    return el("h2", { text: names[task.kind] ?? "Labels" });
  }

  function controls() {
    const row = el("div", { class: "controls" });
    if (task.kind === "next") {
      view.button = el("button", { type: "button", class: "live-generate", text: "Generate", on: { click: () => generate() } });
      row.append(
        view.button,
        slider("Temperature", { min: 0, max: 2, step: 0.05, value: view.temperature }, (value) => { view.temperature = value; show(); }),
        slider("Top k", { min: 0, max: 100, step: 1, value: view.topK }, (value) => { view.topK = value; }),
      );
    }
    if (task.kind === "fill") row.append(el("button", { type: "button", text: `Insert ${task.maskName}`, on: { click: insertMask } }));
    row.append(time);
    return row;
  }

  function insertMask() {
    const { selectionStart: from, selectionEnd: to, value } = input;
    input.value = `${value.slice(0, from)}${task.maskName}${value.slice(to)}`;
    update();
    input.focus();
  }

  function update() {
    const start = performance.now();
    view.answer = session.answer(input.value, second ? second.value : null);
    const { answer } = view;
    if (view.chosen !== null && view.chosen >= answer.ids.length) view.chosen = null;
    show();
    const spent = performance.now() - start;
    root.dataset.milliseconds = spent.toFixed(2);
    time.textContent = `${answer.ids.length} tokens in ${spent.toFixed(spent < 10 ? 1 : 0)} ms`;
    note.hidden = answer.left === 0;
    const end = task.kind === "next" ? "The model reads the last" : "Only the first window is read: the first";
    note.textContent = `This text is longer than the model's window. ${end} ${answer.ids.length} tokens count; ${answer.left} are left out.`;
  }

  function show() {
    if (view.answer === null) return;
    result.replaceChildren(...liveResult(view, insertToken));
    liveTokens(tokens, view, choose);
    if (data.spec.kind === "transformer") liveAttention(inside, view, show);
    else liveStates(inside, view);
  }

  function choose(place) {
    view.chosen = view.chosen === place ? null : place;
    show();
    tokens.children[place]?.focus();
  }

  function insertToken(id) {
    input.value += session.continuation(session.prompt(input.value), [id]);
    update();
  }

  function generate() {
    if (view.running) {
      view.running = false;
      return;
    }
    view.running = true;
    view.button.textContent = "Stop";
    const before = input.value;
    const prompt = session.prompt(before);
    const made = [];
    const steps = session.generate(before, { temperature: view.temperature, topK: view.topK, most: 80 });
    const next = () => {
      const step = view.running ? steps.next() : { done: true };
      if (!step.done && step.value.id !== task.end) {
        made.push(step.value.id);
        input.value = before + session.continuation(prompt, made);
        input.scrollTop = input.scrollHeight;
        setTimeout(next, 0);
        return;
      }
      view.running = false;
      view.button.textContent = "Generate";
      update();
    };
    next();
  }

  for (const field of [input, second]) field?.addEventListener("input", update);
  onTheme(show);
  update();
  const loaded = performance.now() - began;
  root.dataset.load = loaded.toFixed(1);
  const layers = data.spec.layers?.length ?? data.spec.layerCount;
  facts.textContent =
    `${data.family}, ${layers} ${layers === 1 ? "layer" : "layers"} of width ${data.spec.width}, ${data.parameters.toLocaleString("en")} parameters in ${data.precision}. ` +
    `Loaded in ${loaded.toFixed(0)} ms. Everything is computed in this page; nothing that you type leaves it.`;
  root.live = { session, view, update };
}

function liveBar(name, probability, options = {}) {
  const fill = el("span", { class: "live-fill", style: { width: `${100 * Math.min(1, Math.max(0, probability))}%` } });
  const label = options.click ? el("button", { type: "button", class: "live-name", title: options.title, on: { click: options.click } }, name) : el("span", { class: "live-name" }, name);
  return el("li", { class: options.chosen ? "live-bar chosen" : "live-bar" }, label, el("span", { class: "live-track" }, fill), el("span", { class: "live-number", text: `${(100 * probability).toFixed(1)} %` }));
}

// A token with its spaces and line ends made visible.
function liveVisible(text) {
  return text === "" ? "∅" : text.replaceAll("\n", "↵").replaceAll(/^ | $/g, "␣").replaceAll("▁", "␣").replaceAll("\t", "⇥");
}

function liveResult(view, insert) {
  const { session, data: { task }, answer } = view;
  switch (task.kind) {
    case "next": {
      const rows = session.ranked(answer.logits, LIVE_TOP, Math.max(0.05, view.temperature));
      return [
        el("ul", { class: "live-bars" }, rows.map((row) => liveBar(liveVisible(row.text), row.probability, { click: () => insert(row.id), title: "Append this token" }))),
        el("p", { class: "note", text: "Choose a word to append it." }),
      ];
    }
    case "fill":
      if (!answer.gaps.length) return [el("p", { class: "note", text: `Write ${task.maskName} where a word is missing.` })];
      return answer.gaps.map((gap, n) =>
        el("div", { class: "live-gap" }, el("h3", { text: `Gap ${n + 1}` }), el("ul", { class: "live-bars" }, session.ranked(gap.logits, LIVE_TOP).map((row) => liveBar(liveVisible(row.text), row.probability)))),
      );
    case "value":
      return [el("p", { class: "live-value", text: format(answer.value) })];
    case "tags":
      return [liveEntities(answer, task, document.getElementById("live-text").value)];
    default: {
      const chosen = (n) => (task.kind === "labels" ? answer.probabilities[n] >= task.thresholds[n] : n === answer.best);
      const order = answer.probabilities.map((_, n) => n);
      if (order.length > 12) order.sort((a, b) => answer.probabilities[b] - answer.probabilities[a]);
      return [el("ul", { class: "live-bars" }, order.slice(0, 30).map((n) => liveBar(task.labels[n], answer.probabilities[n], { chosen: chosen(n) })))];
    }
  }
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
    line.append(el("mark", { style: { borderColor: color } }, letters.slice(span.start, span.end).join(""), el("span", { class: "live-tag", style: { color }, text: `${span.label} ${(100 * span.score).toFixed(0)} %` })));
    done = span.end;
  }
  line.append(letters.slice(done).join(""));
  return el("div", {}, line, spans.length ? null : el("p", { class: "note", text: "No entities here." }));
}

function liveTokens(box, view, choose) {
  const { session, answer, data } = view;
  const looking = view.chosen === null || data.spec.kind !== "transformer" ? null : liveRow(view, view.chosen);
  box.replaceChildren(
    ...answer.ids.map((id, place) => {
      const shade = looking === null ? null : sequential(Math.sqrt(looking[place] ?? 0) * 0.7);
      const name = liveVisible(session.tokenizer.shown(id));
      const percent = looking === null ? "" : `, ${(100 * (looking[place] ?? 0)).toFixed(1)} % of its attention`;
      return el("button", {
        type: "button",
        class: `live-token${answer.sides[place] === null ? " special" : ""}${place === view.chosen ? " chosen" : ""}`,
        "aria-pressed": String(place === view.chosen),
        "aria-label": `token ${place + 1}: ${name}${percent}`,
        style: shade === null ? {} : { background: shade },
        on: { click: () => choose(place), mousemove: (event) => tooltip(event, `${name}\nid ${id}, place ${place}${percent}`), mouseleave: hideTooltip },
      }, name);
    }),
  );
}

// The attention of one token in the chosen head.
function liveRow(view, place) {
  const rows = view.answer.read.attention[view.layer];
  const row = rows[place];
  const heads = view.data.spec.layers[view.layer].heads;
  const seen = row.length / heads;
  return row.subarray(view.head * seen, (view.head + 1) * seen);
}

function liveMatrix(context, rows, heads, head, size) {
  const cell = size / rows.length;
  rows.forEach((row, place) => {
    const seen = row.length / heads;
    for (let key = 0; key < seen; key++) {
      const weight = row[head * seen + key];
      if (weight < 0.004) continue;
      context.fillStyle = sequential(Math.sqrt(weight));
      context.fillRect(key * cell, place * cell, Math.max(cell, 0.5), Math.max(cell, 0.5));
    }
  });
}

function liveAttention(box, view, show) {
  const { answer: { read, ids }, data: { spec } } = view;
  if (ids.length > LIVE_WIDE) {
    box.replaceChildren(el("p", { class: "note", text: `Attention is drawn for texts up to ${LIVE_WIDE} tokens; this one has ${ids.length}.` }));
    return;
  }
  const size = 56;
  const grid = el("div", { class: "live-grid" });
  read.attention.forEach((rows, layer) => {
    const { heads } = spec.layers[layer];
    const line = el("div", { class: "live-layer" }, el("span", { class: "live-layer-name", text: `layer ${layer}` }));
    for (let head = 0; head < heads; head++) {
      const { canvas, context } = hidpiCanvas(size, size);
      liveMatrix(context, rows, heads, head, size);
      const chosen = layer === view.layer && head === view.head;
      line.append(el("button", { type: "button", class: `live-head${chosen ? " chosen" : ""}`, "aria-pressed": String(chosen), "aria-label": `layer ${layer}, head ${head}`, title: `layer ${layer}, head ${head}`, on: { click: () => { view.layer = layer; view.head = head; show(); } } }, canvas));
    }
    grid.append(line);
  });
  box.replaceChildren(grid, liveArcs(view));
}

// The tokens twice, with lines from those that look to those that are looked at.
function liveArcs(view) {
  const { session, answer, data: { spec } } = view;
  const step = 20;
  const width = 420;
  const count = answer.ids.length;
  const { canvas, context } = hidpiCanvas(width, count * step + 28);
  const rows = answer.read.attention[view.layer];
  const { heads } = spec.layers[view.layer];
  context.font = "13px system-ui, sans-serif";
  context.textBaseline = "middle";
  const [ink, muted, accent] = [cssColor("--ink"), cssColor("--muted"), cssColor("--accent")];
  const name = (id) => {
    const text = liveVisible(session.tokenizer.shown(id));
    return text.length > 14 ? `${text.slice(0, 13)}…` : text;
  };
  context.fillStyle = muted;
  context.textAlign = "right";
  context.fillText("looks", 140, 10);
  context.textAlign = "left";
  context.fillText("is looked at", 280, 10);
  answer.ids.forEach((id, place) => {
    const y = 28 + place * step + step / 2;
    context.fillStyle = place === view.chosen ? accent : ink;
    context.textAlign = "right";
    context.fillText(name(id), 140, y);
    context.textAlign = "left";
    context.fillStyle = ink;
    context.fillText(name(id), 280, y);
    if (view.chosen !== null && place !== view.chosen) return;
    const row = rows[place];
    const seen = row.length / heads;
    for (let key = 0; key < seen; key++) {
      const weight = row[view.head * seen + key];
      if (weight < 0.02) continue;
      context.globalAlpha = Math.min(1, weight * (view.chosen === null ? 0.8 : 1) + 0.05);
      context.strokeStyle = accent;
      context.lineWidth = 0.5 + 3 * weight;
      context.beginPath();
      context.moveTo(148, y);
      context.bezierCurveTo(210, y, 210, 28 + key * step + step / 2, 272, 28 + key * step + step / 2);
      context.stroke();
      context.globalAlpha = 1;
    }
  });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Attention of layer ${view.layer}, head ${view.head}`);
  return el("div", { class: "live-arcs" }, el("h3", { text: `Layer ${view.layer}, head ${view.head}` }), canvas);
}

// The states of the last recurrent layer: a row for each token.
function liveStates(box, view) {
  const { answer: { read, ids } } = view;
  if (ids.length > LIVE_WIDE) {
    box.replaceChildren(el("p", { class: "note", text: `States are drawn for texts up to ${LIVE_WIDE} tokens.` }));
    return;
  }
  const { data, width } = read.hidden;
  const across = Math.min(width, 256);
  const cell = Math.max(2, Math.min(LIVE_GRID, Math.floor(520 / across)));
  const { canvas, context } = hidpiCanvas(across * cell, ids.length * 14);
  const [warm, cold] = [lineColor(1), lineColor(0)];
  for (let row = 0; row < ids.length; row++) {
    for (let n = 0; n < across; n++) {
      const value = data[row * width + n];
      context.globalAlpha = Math.min(1, Math.abs(value));
      context.fillStyle = value > 0 ? cold : warm;
      context.fillRect(n * cell, row * 14, cell, 13);
    }
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Hidden states by token");
  box.replaceChildren(el("div", { class: "live-arcs" }, canvas));
}
