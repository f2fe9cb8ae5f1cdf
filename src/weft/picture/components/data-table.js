import { el } from "./base.js";

// A table that Python wrote, sorted by the column whose heading is pressed; the third press restores its own order.
export function dataTable(root) {
  const body = root.querySelector("tbody");
  const original = [...body.rows];
  if (original.length < 2) return;
  const headings = [...root.querySelectorAll("th")];
  headings.forEach((heading, column) => {
    const button = el("button", { type: "button", title: "Sort by this column" }, [...heading.childNodes]);
    heading.append(button);
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      for (const other of headings) other.removeAttribute("aria-sort");
      const way = { descending: "ascending", ascending: null }[before] ?? (before ? null : "descending");
      if (way) heading.setAttribute("aria-sort", way);
      body.replaceChildren(...(way ? sortedRows(original, column, way) : original));
    });
  });
}

const NUMBER_UNITS = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 };

// What a cell sorts by: 12k, 1,234.5 and −3 % are numbers; a text is itself.
export function cellValue(text) {
  const match = text.trim().replaceAll(",", "").replace("−", "-").match(/^([-+]?[\d.]*\d(?:e[-+]?\d+)?)([kMGT](?![a-zA-Z]))?/i);
  return match ? Number(match[1]) * (NUMBER_UNITS[match[2]] ?? 1) : NaN;
}

function sortedRows(rows, column, way) {
  const text = (row) => row.cells[column]?.textContent ?? "";
  const numbers = rows.filter((row) => Number.isFinite(cellValue(text(row))));
  const sign = way === "ascending" ? 1 : -1;
  if (numbers.length * 2 < rows.length) return [...rows].sort((a, b) => sign * -text(a).localeCompare(text(b)));
  const rest = rows.filter((row) => !numbers.includes(row)); // without a number: last, either way
  return [...[...numbers].sort((a, b) => sign * (cellValue(text(a)) - cellValue(text(b)))), ...rest];
}
