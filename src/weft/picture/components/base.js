// What every component uses: elements, numbers, colors, the tooltip and form controls.

const SVG_SPACE = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

// An HTML element; children are nodes or strings, which become text, never markup.
export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svgEl(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_SPACE, tag), attributes, children);
}

// A number as people write it: so many digits after the point, an exponent where it is tiny or huge.
export function format(x, digits = 3) {
  if (!Number.isFinite(x)) return x === Infinity ? "∞" : x === -Infinity ? "−∞" : "–";
  const size = Math.abs(x);
  if (size !== 0 && (size >= 1e6 || size < 0.5 * 10 ** -digits)) return x.toExponential(2).replace("-", "−");
  return x.toFixed(digits).replace("-", "−");
}

const READERS = {
  float32: (buffer) => new Float32Array(buffer),
  int8: (buffer) => new Int8Array(buffer),
  uint8: (buffer) => new Uint8Array(buffer),
  uint16: (buffer) => new Uint16Array(buffer),
  int32: (buffer) => new Int32Array(buffer),
};

export function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

export function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

let halfTable; // of every float16, made when the first one is read

// What Python's `packed` wrote: {shape, data}, a typed array; float16 becomes Float32Array.
export function unpack(packed) {
  const buffer = bytesOf(packed.data).buffer;
  if (packed.type !== "float16") return { shape: packed.shape, data: READERS[packed.type](buffer) };
  halfTable ??= Float32Array.from({ length: 65536 }, (_, bits) => halfToFloat(bits));
  const halves = new Uint16Array(buffer);
  const data = new Float32Array(halves.length);
  for (let n = 0; n < data.length; n++) data[n] = halfTable[halves[n]];
  return { shape: packed.shape, data };
}

// ---------------------------------------------------------------------------------------------------------- colors

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

let themeListeners = [];

// Call back when the theme changes, for what is drawn on a canvas.
export function onTheme(callback) {
  themeListeners.push(callback);
}

export function themeChanged() {
  for (const callback of themeListeners) callback();
}

// Run what builds a part of the page; the function that comes back forgets the listeners that the part added, so that
// a part which is replaced can be freed.
export function withThemeListeners(build) {
  const before = themeListeners;
  themeListeners = [];
  let own = [];
  try {
    build();
  } finally {
    own = themeListeners;
    themeListeners = [...before, ...own];
  }
  return () => { themeListeners = themeListeners.filter((callback) => !own.includes(callback)); };
}

function between(stops, t) {
  const place = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  const part = place - low;
  const mixed = stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * part));
  return `rgb(${mixed.join(",")})`;
}

// From the ground to a strong blue: light and dark differ, and people without red, green or blue see the order.
const SEQUENTIAL = {
  light: [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]],
  dark: [[21, 24, 28], [18, 52, 90], [30, 100, 160], [96, 170, 225], [214, 236, 255]],
};
// From orange over the ground to blue.
const DIVERGING = {
  light: [[179, 88, 6], [241, 163, 64], [255, 255, 255], [103, 169, 207], [5, 93, 150]],
  dark: [[255, 170, 80], [170, 95, 20], [28, 32, 37], [20, 95, 150], [100, 185, 245]],
};

// t from 0 to 1.
export function sequential(t) {
  return between(SEQUENTIAL[isDark() ? "dark" : "light"], t);
}

// t from -1 to 1.
export function diverging(t) {
  return between(DIVERGING[isDark() ? "dark" : "light"], (t + 1) / 2);
}

// The text color that is readable on sequential(t) or diverging(t).
export function inkOn(color) {
  const [red, green, blue] = color.match(/\d+/g).map(Number);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
}

export function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The n-th color of lines and groups; there are six.
export function lineColor(n) {
  return cssColor(`--line-${n % 6}`);
}

// --------------------------------------------------------------------------------------------------------- drawing

// A canvas that is sharp on every screen; coordinates are CSS pixels.
export function hidpiCanvas(width, height) {
  const scale = globalThis.devicePixelRatio || 1;
  const canvas = el("canvas", { style: { width: `${width}px`, height: `${height}px` } });
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return { canvas, context };
}

function tooltipBox() {
  return document.getElementById("tooltip") ?? document.body.appendChild(el("div", { id: "tooltip", role: "status", hidden: true }));
}

// Show a text or a node beside the mouse, or beside the element that has the focus.
export function tooltip(event, content) {
  const box = tooltipBox();
  box.replaceChildren(content);
  box.hidden = false;
  const at = event.clientX === undefined ? event.target.getBoundingClientRect() : null;
  const [x, y] = at ? [at.left, at.bottom] : [event.clientX, event.clientY];
  const size = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - size.width - 4))}px`;
  box.style.top = `${y + 16 + size.height > innerHeight ? Math.max(4, y - size.height - 8) : y + 16}px`;
}

export function hideTooltip() {
  tooltipBox().hidden = true;
}

// -------------------------------------------------------------------------------------------------------- controls

// Keys on an element, such as {ArrowLeft: f}; typing into a field is left alone.
export function keys(element, actions) {
  element.addEventListener("keydown", (event) => {
    const run = actions[event.key];
    if (!run || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    event.preventDefault();
    run(event);
  });
}

function optionOf(option) {
  return Array.isArray(option) ? option : [option, String(option)];
}

// Buttons of which one is pressed; options are values or [value, text]. `.choose(value)` presses one.
export function segmented(label, options, chosen, onChange) {
  const buttons = options.map(optionOf).map(([value, text]) =>
    el("button", { type: "button", text, "aria-pressed": String(value === chosen), on: { click: () => choose(value, true) } }));
  const values = options.map((option) => optionOf(option)[0]);
  function choose(value, tell = false) {
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", String(values[n] === value)));
    if (tell) onChange(value);
  }
  const node = el("span", { class: "control" }, label, el("span", { class: "segments", role: "group", "aria-label": label }, buttons));
  node.choose = choose;
  return node;
}

export function selector(label, options, chosen, onChange) {
  const pairs = options.map(optionOf);
  const list = el("select", { on: { change: () => onChange(pairs[list.selectedIndex][0]) } },
    pairs.map(([value, text]) => el("option", { text, selected: value === chosen })));
  const node = el("label", { class: "control" }, label, list);
  node.choose = (value) => { list.selectedIndex = pairs.findIndex((pair) => pair[0] === value); };
  return node;
}

export function slider(label, { min, max, step, value }, onChange) {
  const shown = el("output", { text: String(value) });
  const input = el("input", { type: "range", min, max, step, value, on: { input: () => {
    shown.textContent = input.value;
    onChange(Number(input.value));
  } } });
  return el("label", { class: "control" }, label, input, shown);
}
