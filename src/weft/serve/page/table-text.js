// Numbers that a person pasted: a table with a header (csv, tsv), or one series of bare numbers.

const DELIMITERS = ["\t", ";", ","];

/** The cells of a line; quotes keep delimiters together. */
export function cellsOf(line, delimiter) {
  const cells = [];
  let cell = "";
  let quoted = false;
  for (let n = 0; n < line.length; n++) {
    const letter = line[n];
    if (letter === '"' && quoted && line[n + 1] === '"') cell += line[n++];
    else if (letter === '"') quoted = !quoted;
    else if (letter === delimiter && !quoted) {
      cells.push(cell.trim());
      cell = "";
    } else cell += letter;
  }
  return [...cells, cell.trim()];
}

/** A cell as a number where it is one; 3,5 is one where commas do not part cells. */
export function numberOf(cell, delimiter) {
  const text = delimiter !== "," && /^-?\d+,\d+$/.test(cell) ? cell.replace(",", ".") : cell;
  return text !== "" && /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) ? Number(text) : null;
}

/**
 * What was pasted: {rows, columns} of a table, {values} of bare numbers, or {problem} in words.
 * @param {string} text
 */
export function readTable(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim());
  const bare = text.trim().split(/[\s,;]+/).map((cell) => numberOf(cell, ";"));
  if (bare.length && bare.every((value) => value !== null)) return { values: bare };
  if (lines.length < 2) return { problem: "Paste a table with a header line, or numbers." };
  const delimiter = DELIMITERS.reduce((best, each) => (cellsOf(lines[0], each).length > cellsOf(lines[0], best).length ? each : best));
  const columns = cellsOf(lines[0], delimiter);
  const rows = [];
  for (const [n, line] of lines.slice(1).entries()) {
    const cells = cellsOf(line, delimiter);
    if (cells.length !== columns.length) return { problem: `Line ${n + 2} has ${cells.length} cells, the header ${columns.length}.` };
    rows.push(Object.fromEntries(columns.map((name, column) => [name, numberOf(cells[column], delimiter) ?? cells[column]])));
  }
  return { rows, columns };
}
