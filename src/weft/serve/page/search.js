// Search: lines in the order of their nearness to a query, by meaning or by a model that reads both together.

import { el, format } from "/static/picture/base.js";
import { bars, count } from "./parts.js";

const SHOWN = 50;

function linesOf(view) {
  return view.text.split("\n").map((line) => line.trim()).filter(Boolean);
}

const NOTES = [
  "Reset your password from the sign-in page.", "Our shop is open from nine to five, Monday to Friday.", "Refunds are paid within ten days.",
  "The red scarf is made of soft merino wool.", "You can change the delivery address until the parcel is sent.", "We ship to all countries of the European Union.",
  "Wash the blanket by hand in cold water.", "Write to us if your order arrives damaged.",
].join("\n");

/** @type {import("./view.js").Tab} */
export const search = {
  id: "search",
  name: "Search",
  about: "Paste lines and ask for something; the nearest in meaning come first.",
  serves: (model) => model.tasks.includes("rank"),
  made: ["embed", "rank", "pair", "fill"],
  manyTexts: true,
  box: { key: "lines", label: "Texts, one on each line", placeholder: "Paste the lines to search in", rows: 6 },
  fields: [{ key: "query", label: "Query", placeholder: "What are you looking for?" }],
  examples: () => [
    { name: "Money back", text: NOTES, fields: { query: "How do I get my money back?" } },
    { name: "Warm clothes", text: NOTES, fields: { query: "something warm to wear" } },
    { name: "Opening hours", text: NOTES, fields: { query: "When can I visit you?" } },
  ],
  missing: (view) => (!view.text.trim() ? "Paste some lines, or try an example." : !view.field("query").trim() ? "Type what you are looking for." : ""),
  async run(view) {
    const [query, texts, { id }] = [view.field("query"), linesOf(view), view.model];
    const { answers: [{ hits }] } = await view.post("/v1/rank", { model: id, input: { query, texts }, top: Math.min(SHOWN, texts.length) });
    const largest = Math.max(1e-9, ...hits.map((hit) => hit.score));
    const list = bars("Results", hits.map((hit, n) => ({ name: hit.text, value: hit.score, best: n === 0, note: format(hit.score, 3) })), { of: Math.max(1, largest), kind: "results" });
    view.show(() => [list, hits.length < texts.length && el("p", { class: "note", text: `The first ${hits.length} of ${count(texts.length, "line")}.` })]);
    view.say(`${count(hits.length, "result")}. First: ${hits[0]?.text ?? "none"}`);
  },
};
