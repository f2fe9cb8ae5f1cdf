import { el, hideTooltip, keys, segmented, tooltip } from "./base.js";

// One text by several tokenizers: data has `text` and `tokenizers` ({name, vocabulary, pieces: [{token, id, start, end,
// special, unknown}]}, offsets in characters of the text). What is pointed at in one strip is marked in all.
export function tokenStrips(root, data) {
  new TokenStripsPage(root, data);
}

class TokenStripsPage {
  constructor(root, data) {
    this.letters = [...data.text]; // offsets count characters, not UTF-16 units
    this.strips = [];
    this.names = "text";
    root.classList.add("token-strips");
    this.caption = el("p", { class: "token-strips-caption", "aria-live": "polite" });
    const parts = data.tokenizers.map((own, row) => this.strip(own, row));
    const choice = segmented("Show", [["text", "text"], ["tokens", "tokens"], ["ids", "ids"]], "text", (value) => { this.names = value; this.name(); });
    root.replaceChildren(el("div", { class: "controls" }, choice), ...parts.flat(), this.caption);
    this.name();
    this.say(null);
  }

  strip(own, row) {
    const count = own.pieces.filter((piece) => !piece.special).length;
    let turn = 0;
    const nodes = own.pieces.map((piece, place) => {
      turn += piece.special ? 0 : 1;
      const kind = piece.special ? "special" : turn % 2 ? "odd" : "even";
      return el("span", { class: `piece ${kind}${piece.unknown ? " unknown" : ""}`, on: {
        pointermove: (event) => { tooltip(event, this.describe(piece)); this.mark(row, place); },
        pointerleave: () => { hideTooltip(); this.mark(null); },
      } });
    });
    const line = el("div", { class: "strip", tabindex: 0, role: "application", "aria-label": `${own.name}: ${count} tokens. Arrow keys go from token to token.` }, nodes);
    const strip = { own, nodes, at: null };
    const go = (by) => () => {
      strip.at = Math.min(nodes.length - 1, Math.max(0, (strip.at ?? -by) + by));
      this.mark(row, strip.at);
    };
    keys(line, { ArrowLeft: go(-1), ArrowRight: go(1), Escape: () => { strip.at = null; this.mark(null); } });
    this.strips.push(strip);
    return [el("h3", {}, `${own.name} `, el("small", { text: `${count} tokens, vocabulary ${own.vocabulary.toLocaleString("en-US")}` })), line];
  }

  slice(piece) {
    return this.letters.slice(piece.start, piece.end).join("");
  }

  name() {
    for (const { own, nodes } of this.strips) {
      own.pieces.forEach((piece, place) => {
        const text = this.names === "ids" ? String(piece.id) : this.names === "tokens" || piece.special ? piece.token : this.slice(piece);
        const parts = text.split(/([ \n\t]+)/).filter(Boolean).map((part) => (/^\s+$/.test(part) ? el("span", { class: "space", text: part.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "→") }) : part));
        nodes[place].replaceChildren(...(parts.length ? parts : ["∅"]));
      });
    }
  }

  describe(piece) {
    if (piece.special) return `${piece.token}\nid ${piece.id}, special token`;
    return `${piece.token}${piece.unknown ? " (unknown)" : ""}\nid ${piece.id}, characters ${piece.start} to ${piece.end}: “${this.slice(piece)}”`;
  }

  // Mark a piece, and in the other strips all that share a character with it.
  mark(row, place) {
    const piece = row === null ? null : this.strips[row].own.pieces[place];
    this.strips.forEach(({ own, nodes }, number) => own.pieces.forEach((each, n) => {
      const shares = piece !== null && !piece.special && !each.special && each.start < piece.end && piece.start < each.end;
      nodes[n].classList.toggle("marked", number === row ? n === place : shares);
    }));
    this.say(piece);
  }

  say(piece) {
    this.caption.textContent = piece ? this.describe(piece).replace("\n", " · ") : "Point at a token, or use the arrow keys. The same characters are marked in every strip.";
  }
}
