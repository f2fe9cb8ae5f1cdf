import { diverging, el, format, inkOn, keys, onTheme, segmented, sequential, unpack } from "./base.js";

// A walk: steps with matrices; each cell shows the numbers that made it. A pure function of the JSON that
// explain/walk_steps.py describes; `values` may be packed, or {shape, data} with a typed array of live numbers.

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

// Text with W^Q, d_k, W^{in} as raised and lowered letters.
function walkFormula(text) {
  return text.split(/([\^_](?:\{[^}]*\}|[A-Za-z0-9⊤]+))/).map((part) => {
    const mark = /^([\^_])\{?([^}]*)\}?$/.exec(part);
    return mark ? el(mark[1] === "^" ? "sup" : "sub", { text: mark[2] }) : part;
  });
}

function walkOpened(matrices) {
  const opened = {};
  for (const [id, matrix] of Object.entries(matrices)) {
    const { shape, data } = typeof matrix.values.data === "string" ? unpack(matrix.values) : matrix.values;
    let most = 0;
    for (const value of data) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
    opened[id] = { ...matrix, id, data, height: shape[0], width: shape[1], most: most || 1 };
  }
  return opened;
}

function walkAt(matrix, row, column) {
  return matrix && row < matrix.height && column >= 0 && column < matrix.width ? matrix.data[row * matrix.width + column] : undefined;
}

// How a cell was made: {terms: [text], value, cells: [[id, row, column]], rule}; null where its operands are not stored.
// `cells` with row or column null are whole columns or rows.
function walkMade(all, matrix, i, j) {
  const made = matrix.made_from;
  if (!made) return null;
  const left = all[made.left], right = all[made.right], bias = all[made.bias], gain = all[made.gain], more = all[made.more];
  const digits = Math.max(3, matrix.digits);
  const show = (x) => (x < 0 ? `(${format(x, digits)})` : format(x, digits));
  const at = (side, row, column) => walkAt(side, row, column) ?? NaN;
  const a = at(left, i, j);
  if (made.kind === "product") {
    const terms = [];
    let value = 0;
    for (let k = 0; k < left.width; k++) {
      const pair = [at(left, i, k), made.transpose ? at(right, j, k) : at(right, k, j)];
      value += pair[0] * pair[1];
      if (k < WALK_TERMS) terms.push(`${show(pair[0])}·${show(pair[1])}`);
    }
    if (left.width > WALK_TERMS) terms.push(`… (${left.width} products)`);
    if (bias) {
      value += at(bias, 0, j);
      terms.push(`${show(at(bias, 0, j))} (${bias.name})`);
    }
    const cells = [[left.id, i, null], made.transpose ? [right.id, j, null] : [right.id, null, j], ...(bias ? [[bias.id, 0, j]] : [])];
    return { terms: terms.join(" + "), value, cells, rule: `row ${left.rows[i]} of ${left.name} times ${made.transpose ? "row" : "column"} ${made.transpose ? right.rows[j] : right.columns[j]} of ${right.name}` };
  }
  if (made.kind === "add" || made.kind === "multiply") {
    const row = right.height === 1 ? 0 : i;
    const b = at(right, row, j);
    const sum = made.kind === "add";
    return { terms: `${show(a)} ${sum ? "+" : "·"} ${show(b)}`, value: sum ? a + b : a * b, cells: [[left.id, i, j], [right.id, row, j]], rule: `${left.name} ${sum ? "plus" : "times"} ${right.name}` };
  }
  if (made.kind === "scale") {
    const by = made.divisor === undefined ? `${show(a)} · ${format(made.factor, digits)}` : `${show(a)} / ${format(made.divisor, digits)}`;
    return { terms: by, value: a * made.factor, cells: [[left.id, i, j]], rule: `${left.name}, ${made.divisor === undefined ? "times" : "divided by"} one number` };
  }
  if (made.kind === "softmax") {
    let sum = 0;
    const powers = [];
    for (let k = 0; k < left.width; k++) {
      const x = at(left, i, k);
      sum += Math.exp(x - a);
      if (k < WALK_TERMS && x !== -Infinity) powers.push(`exp(${format(x, 2)})`);
    }
    const others = left.width > WALK_TERMS ? " + …" : "";
    const value = a === -Infinity ? 0 : 1 / sum;
    return { terms: a === -Infinity ? "exp(−∞) / sum" : `exp(${format(a, 2)}) / (${powers.join(" + ")}${others})`, value, cells: [[left.id, i, null]], rule: `softmax of row ${left.rows[i]} of ${left.name}` };
  }
  if (made.kind === "norm") {
    let mean = 0, variance = 0;
    if (!made.rms) for (let k = 0; k < left.width; k++) mean += at(left, i, k) / left.width;
    for (let k = 0; k < left.width; k++) variance += (at(left, i, k) - mean) ** 2 / left.width;
    const g = at(gain, 0, j), b = bias ? at(bias, 0, j) : 0;
    const value = ((a - mean) / Math.sqrt(variance + made.epsilon)) * g + b;
    const top = made.rms ? show(a) : `(${format(a, digits)} − ${show(mean)})`;
    return { terms: `${top} / √(${format(variance, 4)} + ${made.epsilon}) · ${show(g)}${bias ? ` + ${show(b)}` : ""}`, value,
      cells: [[left.id, i, null], [gain.id, 0, j], ...(bias ? [[bias.id, 0, j]] : [])],
      rule: made.rms ? "divided by the root mean square of its row, times gain" : `row mean ${format(mean, 4)}, variance ${format(variance, 4)}, then gain and bias` };
  }
  if (made.kind === "row") {
    const row = made.indices[i];
    return { terms: `row ${left.rows[row]}, column ${left.columns[j]}`, value: at(left, row, j), cells: [[left.id, row, j]], rule: `picked from ${left.name}` };
  }
  if (made.kind === "columns") {
    return { terms: `column ${j + made.offset} of ${left.name}`, value: at(left, i, j + made.offset), cells: [[left.id, i, j + made.offset]], rule: "some columns of a wider matrix" };
  }
  if (made.kind === "concat") {
    const own = walkAt(right, i, j - made.offset);
    if (own === undefined) return null;
    return { terms: `column ${j - made.offset} of ${right.name}`, value: own, cells: [[right.id, i, j - made.offset]], rule: "set side by side" };
  }
  if (made.kind === "gate") {
    const b = at(right, i, j), c = at(more, i, j);
    return { terms: `${show(a)}·${show(b)} + (1 − ${show(a)})·${show(c)}`, value: a * b + (1 - a) * c, cells: [[left.id, i, j], [right.id, i, j], [more.id, i, j]], rule: `${left.name} decides between ${right.name} and ${more.name}` };
  }
  return { terms: `${made.function}(${format(a, digits)})`, value: WALK_MAPS[made.function](a), cells: [[left.id, i, j]], rule: `${made.function} of ${left.name}` };
}

function walkColor(matrix, value) {
  if (!Number.isFinite(value)) return null;
  return matrix.scale === "sequential" ? sequential(value / matrix.most) : diverging(value / matrix.most);
}

function walkCell(matrix, i, j) {
  const value = matrix.data[i * matrix.width + j];
  const color = walkColor(matrix, value);
  const near = Math.abs(value) < 0.5 * 10 ** -matrix.digits;
  const cell = el("td", { text: near ? (0).toFixed(matrix.digits) : format(value, matrix.digits), tabindex: -1, "data-row": i, "data-column": j,
    "data-value": Number.isFinite(value) ? value : null, class: Number.isFinite(value) ? null : "walk-none" });
  if (color) Object.assign(cell.style, { background: color, color: inkOn(color) });
  return cell;
}

// A grid with the first `limit` rows and columns; beyond stands an ellipsis.
function walkGrid(matrix, limit) {
  const height = Math.min(matrix.height, Math.max(limit, 8)), width = Math.min(matrix.width, limit);
  const wide = width < matrix.shape[1], tall = height < matrix.shape[0];
  const head = el("tr", {}, el("th"), matrix.columns.slice(0, width).map((label) => el("th", { scope: "col", text: label, title: label })), wide ? el("th", { text: "…" }) : null);
  const body = [];
  for (let i = 0; i < height; i++) {
    const cells = [];
    for (let j = 0; j < width; j++) cells.push(walkCell(matrix, i, j));
    body.push(el("tr", {}, el("th", { scope: "row", text: matrix.rows[i], title: matrix.rows[i] }), cells, wide ? el("td", { class: "walk-rest", text: "…" }) : null));
  }
  if (tall) body.push(el("tr", {}, el("th", { text: "⋮" }), Array.from({ length: width + (wide ? 1 : 0) }, () => el("td", { class: "walk-rest", text: "⋮" }))));
  const first = body[0]?.querySelector("td[data-row]");
  if (first) first.tabIndex = 0;
  const table = el("table", { class: "walk-grid", "data-id": matrix.id }, el("thead", {}, head), el("tbody", {}, body));
  return el("figure", { class: "walk-matrix", "aria-label": `${matrix.name}, ${matrix.shape[0]} by ${matrix.shape[1]}` },
    el("figcaption", {}, walkFormula(matrix.name), el("span", { class: "walk-shape", text: ` ${matrix.shape[0]} × ${matrix.shape[1]}` })),
    el("div", { class: "walk-scroll" }, table));
}

function walkTable(table) {
  const marked = new Set((table.marked ?? []).map(([i, j]) => `${i},${j}`));
  const rows = table.rows.map((row, i) => el("tr", {}, row.map((text, j) => el("td", { text, class: marked.has(`${i},${j}`) ? "walk-marked" : null }))));
  return el("figure", { class: "walk-table" }, table.name ? el("figcaption", { text: table.name }) : null,
    el("div", { class: "walk-scroll", tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, table.header.map((text) => el("th", { scope: "col", text })))), el("tbody", {}, rows))));
}

function walkPart(step, matrices, limit) {
  const shown = (step.matrices ?? []).map((name) => (matrices[name] ? walkGrid(matrices[name], limit) : el("span", { class: "walk-sign", text: name, "aria-hidden": "true" })));
  return [el("p", { class: "walk-text" }, walkFormula(step.text)), step.formula ? el("p", { class: "walk-formula" }, walkFormula(step.formula)) : null,
    shown.length ? el("div", { class: "walk-row" }, shown) : null, (step.tables ?? []).map(walkTable),
    (step.details ?? []).map((detail) => el("details", {}, el("summary", { text: detail.title }), walkPart(detail, matrices, limit)))];
}

function walkMark(stage, id, row, column) {
  for (const table of stage.querySelectorAll(`table[data-id="${CSS.escape(id)}"]`)) {
    for (const cell of table.querySelectorAll("td[data-row]")) {
      const fits = (row === null || Number(cell.dataset.row) === row) && (column === null || Number(cell.dataset.column) === column);
      if (fits) cell.classList.add("walk-used");
    }
  }
}

export function walk(root, data) {
  const matrices = walkOpened(data.matrices);
  let place = 0, limit = innerWidth < 600 ? 6 : 8;
  const count = el("span", { class: "walk-count", "aria-live": "polite" });
  const bar = el("progress", { max: data.steps.length, "aria-label": "Steps done" });
  const previous = el("button", { type: "button", text: "← Previous", on: { click: () => go(place - 1) } });
  const next = el("button", { type: "button", text: "Next →", on: { click: () => go(place + 1) } });
  const list = el("select", { "aria-label": "Step", on: { change: () => go(list.selectedIndex) } }, data.steps.map((step, n) => el("option", { text: `${n + 1}. ${step.title}` })));
  const size = segmented("Columns", [4, 8, 16, 32], limit, (value) => { limit = value; draw(); });
  const stage = el("div", { class: "walk-stage" });
  const why = el("div", { class: "walk-why", role: "status", "aria-live": "polite" });

  function explain(cell) {
    for (const old of stage.querySelectorAll(".walk-used, .walk-chosen")) old.classList.remove("walk-used", "walk-chosen");
    if (!cell) {
      why.replaceChildren(el("span", { class: "walk-hint", text: "Point at a number, or reach it with the tab and arrow keys, to see how it was made." }));
      return;
    }
    const matrix = matrices[cell.closest("table").dataset.id];
    const [i, j] = [Number(cell.dataset.row), Number(cell.dataset.column)];
    const value = matrix.data[i * matrix.width + j];
    const made = walkMade(matrices, matrix, i, j);
    cell.classList.add("walk-chosen");
    const name = el("strong", {}, walkFormula(matrix.name), ` [${matrix.rows[i]}, ${matrix.columns[j]}]`);
    if (!made || Number.isNaN(made.value)) {
      why.replaceChildren(name, ` = ${format(value, 4)}`, el("span", { class: "walk-hint", text: matrix.made_from ? " (its operands are not on this page)" : " (given)" }));
      return;
    }
    for (const [id, row, column] of made.cells) walkMark(stage, id, row, column);
    why.replaceChildren(name, ` = ${made.terms} = `, el("output", { text: format(made.value, 4), "data-value": String(made.value) }), el("span", { class: "walk-hint" }, " — ", walkFormula(made.rule)));
  }

  // Left and right belong to the cells once one of them has the focus, and else to the steps.
  function move(event, down, across) {
    const cell = event.target.closest?.("td[data-row]");
    if (!cell) return false;
    const wanted = `td[data-row="${Number(cell.dataset.row) + down}"][data-column="${Number(cell.dataset.column) + across}"]`;
    cell.closest("table").querySelector(wanted)?.focus();
    return true;
  }

  function draw() {
    const step = data.steps[place];
    stage.replaceChildren(el("h3", { text: step.title }), ...walkPart(step, matrices, limit).flat().filter(Boolean));
    count.textContent = `Step ${place + 1} of ${data.steps.length}`;
    bar.value = place + 1;
    list.selectedIndex = place;
    previous.disabled = place === 0;
    next.disabled = place === data.steps.length - 1;
    explain(null);
  }

  function go(to) {
    if (to < 0 || to >= data.steps.length) return;
    place = to;
    draw();
  }

  const frame = el("div", { class: "walk", tabindex: 0, "aria-label": data.title }, el("div", { class: "controls" }, previous, next, list, size), el("div", { class: "walk-progress" }, bar, count), stage, why);
  stage.addEventListener("pointerover", (event) => { const cell = event.target.closest("td[data-row]"); if (cell) explain(cell); });
  stage.addEventListener("focusin", (event) => { const cell = event.target.closest("td[data-row]"); if (cell) explain(cell); });
  stage.addEventListener("click", (event) => event.target.closest("td[data-row]")?.focus());
  keys(frame, {
    ArrowRight: (event) => move(event, 0, 1) || go(place + 1),
    ArrowLeft: (event) => move(event, 0, -1) || go(place - 1),
    Escape: () => { frame.focus(); explain(null); },
  });
  frame.addEventListener("keydown", (event) => {
    const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (down && move(event, down, 0)) event.preventDefault();
  });
  onTheme(draw);
  draw();
  root.replaceChildren(frame);
}
