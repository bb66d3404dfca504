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

// The keys that all of some runs have with the same value, and those that vary among them.
function commonConfig(runs) {
  const [first, ...others] = runs.map((id) => DATA.runs[id].config);
  const places = others.map((own) => new Set(own));
  return new Map(first.map((place) => {
    const [key, value] = DATA.pairs[place];
    return [key, places.every((own) => own.has(place)) ? value : "varies"];
  }));
}

function startDifference() {
  const menus = ["one", "other"].map((id) => document.getElementById(id));
  const rows = DATA.rows.filter((row) => row.runs.length).map((row) => [row.label, row.runs]);
  const runs = [...document.querySelectorAll("#runs button.open")].map((button) => {
    const [id, label, seed] = [...button.closest("tr").cells].map((cell) => cell.textContent);
    return [`run ${id}: ${label}, seed ${seed}`, [button.dataset.run]];
  });
  const choices = [...rows, ...runs];
  for (const menu of menus) {
    for (const [title, some, before] of [["rows", rows, 0], ["runs", runs, rows.length]]) {
      const group = html("optgroup", { label: title }, menu);
      some.forEach(([label], i) => html("option", { value: before + i }, group, label));
    }
  }
  menus[1].value = 1;
  function show() {
    const [one, other] = menus.map((menu) => commonConfig(choices[menu.value][1]));
    const keys = [...new Set([...one.keys(), ...other.keys()])].sort();
    const differing = keys.filter((key) => one.get(key) !== other.get(key));
    document.getElementById("differing").textContent = `${differing.length} of ${keys.length} keys differ`;
    const body = document.querySelector("#difference tbody");
    body.replaceChildren();
    for (const key of differing) {
      const line = html("tr", {}, body);
      html("th", { scope: "row" }, line, key);
      for (const own of [one, other]) html("td", {}, line, own.get(key) ?? "–");
    }
  }
  for (const menu of menus) menu.addEventListener("change", show);
  show();
}

startTables();
startForests();
startFigures();
startRuns();
startDifference();
// Tests and benchmarks wait for this attribute.
document.documentElement.dataset.ready = "";
