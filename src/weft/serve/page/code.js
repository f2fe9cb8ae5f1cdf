// The request that was just made, as commands and code that make it again.

import { el } from "/static/picture/base.js";
import { button, copyButton } from "./parts.js";
import { hasKey } from "./api.js";
import { keep, kept } from "./state.js";

/** A text as one word of a POSIX shell. */
export function shellWord(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** A JSON value as Python writes it. */
export function pythonValue(value, indent = "") {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  if (value instanceof Pair) return `(${value.texts.map((text) => JSON.stringify(text)).join(", ")})`;
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => pythonValue(each, inner))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonValue(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length <= 88 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${indent}${close}`;
}

function pythonCall(name, values, named) {
  const parts = [...values.map((value) => pythonValue(value, "    ")), ...Object.entries(named).map(([key, value]) => `${key}=${pythonValue(value, "    ")}`)];
  const line = `${name}(${parts.join(", ")})`;
  return line.length <= 100 && !line.includes("\n") ? line : `${name}(\n${parts.map((part) => `    ${part},\n`).join("")})`;
}

export function curlOf({ route, body }) {
  const lines = [`curl ${location.origin}${route}`, "-H 'Content-Type: application/json'"];
  if (hasKey()) lines.push('-H "Authorization: Bearer $WEFT_API_KEY"');
  if (body.stream) lines.push("--no-buffer");
  const text = JSON.stringify(body);
  if (text.length * 3 < LONG) return [...lines, `-d ${shellWord(text)}`].join(" \\\n  ");
  return `${[...lines, "--data-binary @-"].join(" \\\n  ")} <<'END'\n${text}\nEND`;
}

const OPENAI = ["/v1/completions", "/v1/embeddings"]; // that OpenAI's client asks too
const OWN = ["complete_word", "slide"]; // fields that it does not know
const LONG = 100_000; // bytes: more do not fit into an argument of a command everywhere

/** The call of weft.Client that makes this request: its method, what it is given in order, and its options. */
function clientCall(route, body) {
  const { model, input, prompt, stream, stream_options, ...options } = body; // Python waits for the whole text
  const name = route.split("/").pop();
  switch (name) {
    case "completions":
      return ["complete", [model, prompt], options];
    case "rank":
      return ["rank", [model, input.query, input.texts], options];
    case "answer":
      return ["answer", [model, new Pair(input.question, input.context)], options];
    case "forecast":
      return ["forecast", [model, input.rows ?? input.series], options];
    case "classify":
      return ["classify", [model, input?.pair === undefined ? input : new Pair(input.text, input.pair)], options];
    case "look":
      return ["post", [route, body], {}];
    default:
      return [name, [model, input], options];
  }
}

/** Two texts that Python writes as a tuple. */
class Pair {
  constructor(first, second) {
    this.texts = [first, second];
  }
}

export function weftOf({ route, body }) {
  const key = hasKey() ? ', api_key=os.environ["WEFT_API_KEY"]' : "";
  const head = `${key ? "import os\n\n" : ""}import weft\n\nclient = weft.Client(${JSON.stringify(location.origin)}${key})\n`;
  const [method, values, options] = clientCall(route, body);
  const shown = options.n > 1 && method === "complete" ? "for text in answer.best:\n    print(text.text)" : "print(answer)";
  return `${head}${pythonCall(`answer = client.${method}`, values, options)}\n${shown}\n`;
}

export function openaiOf({ route, body }) {
  const key = hasKey() ? "os.environ[\"WEFT_API_KEY\"]" : '"none"';
  const head = `${hasKey() ? "import os\n\n" : ""}import openai\n\nclient = openai.OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key=${key})\n`;
  const fields = Object.fromEntries(Object.entries(body).filter(([name]) => !OWN.includes(name)));
  const own = Object.fromEntries(Object.entries(body).filter(([name]) => OWN.includes(name)));
  if (Object.keys(own).length) fields.extra_body = own;
  if (route === "/v1/embeddings") return `${head}${pythonCall("answer = client.embeddings.create", [], fields)}\nprint(answer.data[0].embedding)\n`;
  const call = pythonCall("answer = client.completions.create", [], fields);
  if (!body.stream) return `${head}${call}\nprint(answer.choices[0].text)\n`;
  return `${head}${call}\nfor piece in answer:\n    for choice in piece.choices:\n        print(choice.index, choice.text, flush=True)\n`;
}

const FORMS = [["curl", "as curl", curlOf], ["weft", "as Python", weftOf], ["openai", "as Python (openai)", openaiOf]];

/** The part of the page with the code; `show(requests)` fills it with what was just asked. */
export class CodePanel {
  constructor() {
    this.requests = [];
    this.form = kept("code", ""); // "": closed
    this.chosen = 0;
    this.choices = el("span", { class: "segments", role: "group", "aria-label": "The same request in code" });
    this.which = el("label", { class: "control" }, "Request", el("select", { on: { change: (event) => { this.chosen = event.target.selectedIndex; this.picked = true; this.draw(); } } }));
    this.text = el("code");
    this.box = el("div", { class: "code-box" }, el("pre", { tabindex: 0, "aria-label": "Code of the request" }, this.text), copyButton(() => this.text.textContent));
    this.node = el("section", { class: "code", "aria-label": "Use it from your code" }, el("div", { class: "controls" }, el("span", { text: "This request" }), this.choices, this.which), this.box);
    this.show([]);
  }

  show(requests) {
    if (requests.length < this.requests.length || !this.picked) this.chosen = Math.max(0, requests.findIndex(({ minor }) => !minor));
    if (!requests.length) this.picked = false;
    this.requests = requests;
    this.draw();
  }

  choose(form) {
    this.form = this.form === form ? "" : form;
    keep("code", this.form);
    this.draw();
  }

  draw() {
    this.node.hidden = !this.requests.length;
    if (!this.requests.length) return;
    const request = this.requests[Math.min(this.chosen, this.requests.length - 1)];
    const forms = FORMS.filter(([name]) => name !== "openai" || OPENAI.includes(request.route));
    const form = forms.find(([name]) => name === this.form);
    const focused = [...this.choices.children].indexOf(document.activeElement);
    this.choices.replaceChildren(...forms.map(([name, text]) => button(text, () => this.choose(name), { "aria-pressed": String(name === form?.[0]) })));
    this.choices.children[focused]?.focus();
    this.which.hidden = !form || this.requests.length < 2;
    this.which.lastChild.replaceChildren(...this.requests.map(({ route, body }, n) => el("option", { text: `${route} (${body.model})`, selected: n === this.chosen })));
    this.box.hidden = !form;
    if (form) this.text.textContent = form[2](request);
  }
}
