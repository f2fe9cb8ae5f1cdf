// Classify: the probability of every label, the windows of a long text, and which words mattered.

import { el, format } from "/static/picture/base.js";
import { attribution } from "/static/picture/attribution.js";
import { textWindows } from "/static/picture/text-windows.js";
import { ServerError } from "./api.js";
import { Characters, MOST_BARS, bars, button, count, message, percent } from "./parts.js";
import { spansView } from "./spans.js";

const [FEW_BARS, SMALL] = [3, 0.001]; // labels below this probability are left to "Show all", once so many are shown

function isPair(model) {
  return model.task === "pair";
}

/** Whether the server can say which words mattered to it. */
function weighs(model) {
  return model.task !== "spans" && (model.views?.includes("attribution") ?? false);
}

function inputOf(view) {
  return isPair(view.model) ? { text: view.text, pair: view.field("pair") } : view.text;
}

/** The heading of an answer, and its bars. */
function verdict(answer, text) {
  if (answer.object === "value") return [el("p", { class: "verdict" }, format(answer.value, 3))];
  if (answer.object === "spans") return spansView(text, answer.spans);
  const scores = Object.entries(answer.scores).sort((a, b) => b[1] - a[1]);
  const chosen = answer.object === "labels" ? answer.labels : [answer.label];
  const likely = Math.max(FEW_BARS, scores.filter(([, value]) => value >= SMALL).length);
  const name = chosen.length ? chosen.join(", ") : "none of the labels";
  return [
    el("p", { class: "verdict" }, name, " ", chosen.length === 1 && el("span", { text: percent(answer.scores[chosen[0]]) })),
    bars("Probabilities", scores.map(([label, value]) => ({ name: label, value, best: chosen.includes(label), title: label })), { most: Math.max(chosen.length, Math.min(MOST_BARS, likely)) }),
  ];
}

/** A long text is read in windows, of which the answer is the mean: each with its own score, and marked on demand. */
function windowList(view, data) {
  const letters = new Characters(data.text);
  const root = el("div");
  textWindows(root, data, (window) => view.composer.mark([[letters.place(window.start), letters.place(window.end), "chosen"]]));
  const about = data.label === null ? "" : ` The bars show “${data.label}”.`;
  return el("section", {}, el("h2", { text: "Parts of the text" }),
    el("p", { class: "note", text: `The text is longer than the model reads at once, and the answer is the mean over its parts.${about} Press a part to see it in the text.` }), root);
}

async function showWindows(view, place, answer) {
  try {
    const reply = await view.post("/v1/look", { model: view.model.id, view: "windows", input: inputOf(view) }, { minor: true });
    place.replaceChildren(windowList(view, reply.panels[0].data));
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    place.replaceChildren(el("p", { class: "note", text: `Read in ${count(answer.n_windows, "window")}. ${error.message}` }));
  }
}

/** Which words mattered: asked for once the button is pressed, and from then on with every answer. */
async function showWords(view, place, name) {
  place.replaceChildren(el("p", { class: "note loading", text: "Computing which words mattered …" }));
  try {
    const reply = await view.post("/v1/look", { model: view.model.id, view: "attribution", input: inputOf(view), method: "integrated-gradients" }, { minor: true });
    const root = el("div");
    attribution(root, reply.panels[0].data);
    place.replaceChildren(el("section", {}, el("h2", { text: "Which words mattered" }),
      el("p", { class: "note", text: `Blue words speak for “${name}”, orange ones against it. The numbers behind this are in Look, under Words.` }), root));
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    place.replaceChildren(message("empty", "The words cannot be weighed.", error.message));
  }
}

/** @type {import("./view.js").Tab} */
export const classify = {
  id: "classify",
  name: "Classify",
  about: "The label of a text, and how likely each label is.",
  serves: (model) => model.tasks.includes("classify"),
  box: { key: "shared", label: "Text", placeholder: "Type or paste a text", rows: 4 },
  fields: [{ key: "pair", label: "Second text", placeholder: "The text to compare it with", rows: 2, below: true, when: isPair }],
  examples: (model) => (isPair(model) ? [
    { name: "Alike", text: "A man is playing a guitar.", fields: { pair: "A person plays the guitar." } },
    { name: "Different", text: "A man is playing a guitar.", fields: { pair: "The market closed higher on Monday." } },
  ] : [
    { name: "Praise", text: "A gripping, beautifully acted film that stays with you for days." },
    { name: "Complaint", text: "The plot makes no sense, the jokes fall flat and I nearly walked out." },
    { name: "Prize", text: "Congratulations! You have won a free prize. Call now to claim your £500 reward." },
    { name: "Long", text: "The first half of this film is a delight. The cast is wonderful, the pictures are lovely, and the dialogue sparkles with wit. ".repeat(3)
      + "Then it falls apart. The second half is dull, predictable and far too long, and the ending is an insult to the audience. ".repeat(3) },
  ]),
  controls: (view) => {
    const on = view.setting("words", false);
    const toggle = button("Which words mattered", () => {
      const next = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(next));
      view.set("words", next, { again: false });
      view.start(0);
    }, { "aria-pressed": String(on) });
    return weighs(view.model) ? [toggle] : [];
  },
  missing: (view) => (!view.text.trim() ? "Type or paste a text, or try an example." : isPair(view.model) && !view.field("pair").trim() ? "Type the second text." : ""),
  async run(view) {
    const { answers: [answer] } = await view.post("/v1/classify", { model: view.model.id, input: inputOf(view) });
    const windows = el("div", { class: "part" });
    const words = el("div", { class: "part words" });
    view.show(() => [...verdict(answer, view.text), windows, words]);
    const name = answer.label ?? (answer.labels ? answer.labels.join(", ") || "no label" : answer.value !== undefined ? format(answer.value, 3) : count(answer.spans?.length ?? 0, "span"));
    view.say(answer.score === undefined ? name : `${name}, ${percent(answer.score)}`);
    if (answer.n_windows > 1 && !isPair(view.model) && answer.object !== "spans") await showWindows(view, windows, answer);
    if (view.setting("words", false) && weighs(view.model)) await showWords(view, words, name);
  },
};
