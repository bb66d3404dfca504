"use strict";

// Numbers sort by value, names by text, and missing entries (null) last in both directions.
function sortKey(row, column) {
  const cell = row.cells[column];
  const text = cell.textContent.trim();
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  if (text === "" || text === "–") return null;
  return Number.isNaN(Number(text)) ? text : Number(text);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortTable(table, header) {
  const falling = header.getAttribute("aria-sort") === "ascending";
  for (const other of header.parentNode.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const column = header.cellIndex;
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("details"));
    const keyed = rows.map((row) => [sortKey(row, column), row, row.details]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return falling ? compare(b, a) : compare(a, b);
    });
    body.append(...keyed.flatMap(([, row, details]) => (details ? [row, details] : [row])));
  }
}

function startTables() {
  for (const table of document.querySelectorAll("table")) {
    for (const header of table.querySelectorAll("thead th[aria-sort]")) {
      header.querySelector("button").addEventListener("click", () => sortTable(table, header));
    }
  }
}

function pairsOf(places) {
  return places.map((place) => DATA.pairs[place]);
}

function addPairs(host, title, pairs) {
  if (!pairs.length) return;
  const part = html("div", { class: "part" }, host);
  html("h4", {}, part, title);
  const list = html("dl", {}, part);
  for (const [key, value] of pairs) {
    html("dt", {}, list, key);
    html("dd", {}, list, value);
  }
}

function known(named) {
  return named.filter(([, value]) => value !== null).map(([name, value]) => [name, short(value)]);
}

function describe(id, host) {
  const run = DATA.runs[id];
  addPairs(host, "run", Object.entries(run.is));
  addPairs(host, "config", pairsOf(run.config));
  addPairs(host, "environment", pairsOf(run.environment));
  for (const [step, settings, scores] of run.evaluations) {
    addPairs(host, `evaluation after step ${step}`, [...known(Object.entries(scores)), ...pairsOf(settings)]);
  }
  addPairs(host, "metrics, last values", known(DATA.metrics.map((name, i) => [name, run.last[i]])));
}

function startRuns() {
  const rows = [...document.querySelectorAll("#runs tbody tr")];
  for (const row of rows) {
    const button = row.querySelector("button.open");
    button.addEventListener("click", () => {
      const opened = row.details === undefined;
      button.setAttribute("aria-expanded", String(opened));
      if (!opened) {
        row.details.remove();
        delete row.details;
        return;
      }
      row.details = html("tr", { class: "details" });
      const cell = html("td", { colspan: row.cells.length }, row.details);
      describe(button.dataset.run, html("div", { class: "parts" }, cell));
      row.after(row.details);
    });
  }
  const filter = document.getElementById("filter");
  const matching = document.getElementById("matching");
  // Built at the first input, as most readers never filter.
  let texts = null;
  function apply() {
    texts ??= rows.map((row) => {
      const pairs = pairsOf(DATA.runs[row.querySelector("button.open").dataset.run].config);
      return `${row.textContent} ${pairs.map((pair) => pair.join("=")).join(" ")}`.toLowerCase();
    });
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    rows.forEach((row, i) => {
      row.hidden = !words.every((word) => texts[i].includes(word));
      if (row.details) row.details.hidden = row.hidden;
      found += !row.hidden;
    });
    matching.textContent = `${found} of ${rows.length} runs`;
  }
  filter.addEventListener("input", apply);
  matching.textContent = `${rows.length} runs`;
}

startTables();
startForests();
// Paper cannot open what is folded.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});
// Models that were evaluated without a run have no figures.
if (DATA.rows) {
  startFigures();
  startRuns();
}
// Tests and benchmarks wait for this attribute.
document.documentElement.dataset.ready = "";
