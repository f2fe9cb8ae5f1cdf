// Tag: entities, chunks or parts of speech, marked in the text.

import { el } from "/static/picture/base.js";
import { count, message } from "./parts.js";
import { spansView } from "./spans.js";

/** The labels of spans of a model whose tags are B-PER, I-PER ... or plain. */
function labelsOf(model) {
  return [...new Set((model.labels ?? []).filter((label) => label !== "O").map((label) => label.replace(/^[BIESLU]-/, "")))].sort();
}

/** @type {import("./view.js").Tab} */
export const tag = {
  id: "tag",
  name: "Tag",
  about: "Names, places and other spans, marked where they stand.",
  serves: (model) => model.tasks.includes("tag"),
  box: { key: "shared", label: "Text", placeholder: "Type or paste a text with names in it", rows: 4 },
  examples: () => [
    { name: "A life", text: "Ada Lovelace was born in London and worked with Charles Babbage on the Analytical Engine." },
    { name: "News", text: "The European Union and Japan signed the agreement in Brussels on Tuesday, said Angela Merkel after the talks with Toyota and Siemens." },
    { name: "Sports", text: "Lionel Messi scored twice for FC Barcelona in Madrid, while Liverpool lost to Chelsea at Anfield." },
  ],
  async run(view) {
    const { text, model } = view;
    const { answers: [answer] } = await view.post("/v1/tag", { model: model.id, input: text });
    const tagged = answer.spans.length || answer.words.every((word) => word.label === "O") ? answer.spans : answer.words;
    view.show(() => (tagged.length
      ? spansView(text, tagged, labelsOf(model))
      : [el("div", { class: "spans-text", text }), message("empty", "Nothing is marked here.", "The model takes every word for ordinary text.")]));
    view.say(tagged.length ? `${count(tagged.length, "span")}: ${tagged.slice(0, 5).map((span) => `${span.text}, ${span.label}`).join("; ")}` : "Nothing is marked.");
  },
};
