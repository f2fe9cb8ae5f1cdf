// Look: what a model computes for a text. The views are those of `weft look`.

import { el, segmented } from "/static/picture/base.js";
import { attention } from "/static/picture/attention.js";
import { attribution } from "/static/picture/attribution.js";
import { lens } from "/static/picture/lens.js";
import { tokenStrips } from "/static/picture/token-strips.js";
import { walk } from "/static/picture/walk.js";
import { wordBars } from "/static/picture/word-bars.js";

const VIEWS = [["attention", "Attention"], ["walk", "Step by step"], ["lens", "Logit lens"], ["attribution", "Words"], ["tokens", "Tokens"]];
const ABOUT = {
  attention: "What each head of each layer looks at.",
  walk: "One head with all of its numbers, from the embeddings to the prediction.",
  lens: "What each layer would predict if it were the last.",
  attribution: "Which words raised or lowered the answer of the model.",
  tokens: "How the text is cut into tokens.",
};
const WINDOWED = ["attention", "lens"]; // which show one window of a long text
const OF_PAIRS = ["attention", "attribution"]; // which show two texts too
const COMPONENTS = { attention, attribution, lens, walk, "token-strips": tokenStrips, "word-bars": wordBars };

function viewsOf(model) {
  return VIEWS.filter(([view]) => model.views?.includes(view));
}

function chosenView(view) {
  const names = viewsOf(view.model).map(([name]) => name);
  const name = view.setting("view", names[0]);
  return names.includes(name) ? name : names[0];
}

function numberField(view, name, label, min, max) {
  const input = el("input", { type: "number", min, max, value: Math.min(max, view.setting(name, min)), on: { input: () => { if (input.validity.valid && input.value !== "") view.set(name, Number(input.value)); } } });
  return el("label", { class: "control" }, label, input);
}

/** Notes are those of `weft look`: what they say of its flags is no help here. */
function noteOf(text) {
  return (text ?? "").replaceAll(/ \(--[^)]*\)/g, "");
}

/** How many windows the text has, as the notes say; 1 where they say nothing. */
function windowsOf(panels) {
  return Math.max(1, ...panels.map(({ note }) => Number((note ?? "").match(/The text has (\d+) windows/)?.[1] ?? 1)));
}

/** The text; with the second one where the model and the view read two. */
function inputOf(view, name) {
  const pair = OF_PAIRS.includes(name) ? view.field("pair") : "";
  return pair.trim() ? { text: view.text, pair } : view.text;
}

/** The view of one window; a text that has become shorter begins with its first one again. */
async function viewed(view, body) {
  if (view.text.length < (view.looked ?? "").length) view.set("window", 1, { again: false });
  view.looked = view.text;
  const window = WINDOWED.includes(body.view) ? view.setting("window", 1) : 1;
  try {
    return await view.post("/v1/look", window > 1 ? { ...body, window } : body);
  } catch (error) {
    if (window === 1 || error.status !== 422) throw error;
    view.set("window", 1, { again: false });
    return view.post("/v1/look", body);
  }
}

function panelNode({ kind, title, note }) {
  const shown = kind in COMPONENTS;
  return el("section", {}, title && el("h2", { text: title }), shown && el("div", { class: "panel-of-view" }), note && el("p", { class: "note", text: noteOf(note) }));
}

/** @type {import("./view.js").Tab} */
export const look = {
  id: "look",
  name: "Look",
  about: "See what the model computes.",
  serves: (model) => viewsOf(model).length > 0,
  wait: 0.6,
  box: { key: "shared", label: "Text", placeholder: "Type a text to look at", rows: 3 },
  fields: [{ key: "pair", label: "Second text", placeholder: "The text to compare it with, or the document of a question", rows: 2, below: true, when: (model) => model.pair }],
  examples: () => [
    { name: "A sentence", text: "The prince looked at the old soldier and smiled." },
    { name: "It", text: "The animal did not cross the street because it was too tired." },
  ],
  controls: (view) => {
    const chosen = chosenView(view);
    return [
      segmented("Show", viewsOf(view.model), chosen, (name) => { view.set("view", name, { again: false }); view.rebuild(); }),
      ...(chosen === "walk" ? [numberField(view, "layer", "Layer", 0, Math.max(0, (view.model.layers ?? 100) - 1)), numberField(view, "head", "Head", 0, 99)] : []),
      ...(WINDOWED.includes(chosen) && view.windows > 1 ? [numberField(view, "window", `Window of ${view.windows}`, 1, view.windows)] : []),
    ];
  },
  missing: (view) => (!view.text.trim() ? "Type or paste a text, or try an example."
    : view.model.pair && chosenView(view) === "attribution" && !view.field("pair").trim() ? "Type the second text too: the answer is about both." : ""),
  async run(view) {
    const name = chosenView(view);
    view.about.textContent = ABOUT[name];
    const body = { model: view.model.id, view: name, input: inputOf(view, name) };
    if (name === "walk") Object.assign(body, { layer: view.setting("layer", 0), head: view.setting("head", 0) });
    if (name === "attribution") body.method = "integrated-gradients";
    const { panels, ...reply } = await viewed(view, body);
    const windows = windowsOf(panels);
    if (windows !== (view.windows ?? 1)) {
      view.windows = windows;
      view.build();
    }
    const held = view.output.querySelector(".walk")?.parentElement;
    if (name === "walk" && held && view.walked === view.model.id) walk(held, panels[0].data); // the step that is open stays open
    else {
      const nodes = panels.map(panelNode);
      view.show(() => nodes, () => panels.forEach(({ kind, data }, n) => COMPONENTS[kind]?.(nodes[n].querySelector(".panel-of-view"), data)));
    }
    view.walked = name === "walk" ? view.model.id : null;
    view.say(reply.title ?? "");
  },
};
