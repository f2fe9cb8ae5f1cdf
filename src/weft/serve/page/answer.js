// Ask: a document and a question; the answer is marked in the document.

import { el } from "/static/picture/base.js";
import { Characters, bars, percent } from "./parts.js";

const CANDIDATES = 5;

const LOOM = "The power loom was patented by Edmund Cartwright in 1785. It took nearly fifty years before it was fully automatic. "
  + "The Jacquard machine, shown by Joseph Marie Jacquard in Lyon in 1804, used a chain of punched cards to control the pattern of the cloth. "
  + "Charles Babbage later planned to use the same kind of cards to program his Analytical Engine, and Ada Lovelace wrote that the engine "
  + "weaves algebraic patterns just as the Jacquard loom weaves flowers and leaves.";

/** @type {import("./view.js").Tab} */
export const answer = {
  id: "ask",
  name: "Ask",
  about: "Ask a question about a document; the answer is a part of it.",
  serves: (model) => model.tasks.includes("answer"),
  box: { key: "document", label: "Document", placeholder: "Paste a document", rows: 6 },
  fields: [{ key: "question", label: "Question", placeholder: "Who …? When …? Why …?" }],
  examples: () => [
    { name: "Who?", text: LOOM, fields: { question: "Who patented the power loom?" } },
    { name: "When?", text: LOOM, fields: { question: "When was the Jacquard machine shown in Lyon?" } },
    { name: "No answer", text: LOOM, fields: { question: "How many people live in Lyon?" } },
  ],
  missing: (view) => (!view.text.trim() ? "Paste a document, or try an example." : !view.field("question").trim() ? "Ask a question about it." : ""),
  async run(view) {
    const { text } = view;
    const body = { model: view.model.id, input: { question: view.field("question"), context: text }, top: CANDIDATES };
    const { answers: [reply] } = await view.post("/v1/answer", body);
    const letters = new Characters(text);
    const place = ({ start, end }) => [letters.place(start), letters.place(end), "chosen"];
    const choose = (choice) => () => view.composer.mark([place(choice)]);
    const none = !reply.text;
    view.show(() => [
      none
        ? el("p", { class: "verdict none" }, "The document does not answer this.", " ", el("span", { text: percent(reply.no_answer) }))
        : el("p", { class: "verdict" }, reply.text, " ", el("span", { text: percent(reply.score) })),
      el("h2", { text: none ? "What came nearest" : "Candidates" }),
      bars("Candidates", [
        ...reply.best.map((choice) => ({ name: choice.text, value: choice.score, best: !none && choice.start === reply.start && choice.end === reply.end, choose: choose(choice), title: "Show it in the document" })),
        ...(reply.no_answer > 0 || none ? [{ name: "no answer", value: reply.no_answer, best: none }] : []),
      ]),
      reply.no_answer === 0 && el("p", { class: "note", text: "This model always gives an answer: it has not learned when there is none." }),
    ]);
    if (!none) view.composer.mark([place(reply)]);
    view.say(none ? `No answer in the document, ${percent(reply.no_answer)}` : `${reply.text}, ${percent(reply.score)}`);
  },
};
