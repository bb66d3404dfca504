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

function sortTable(table, header, falling) {
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

// Of the document: tables come and go as the page is renewed.
function startTables() {
  document.addEventListener("click", (event) => {
    const header = event.target.closest("thead th[aria-sort]");
    if (!header || !event.target.closest("button")) return;
    sortTable(header.closest("table"), header, header.getAttribute("aria-sort") === "ascending");
  });
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

function toggleDetails(row) {
  const button = row.querySelector("button.open");
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
}

const runRows = () => [...document.querySelectorAll("#runs tbody tr:not(.details)")];
const runOf = (row) => row.querySelector("button.open").dataset.run;

// Returns what filters the runs again.
function startRuns() {
  document.getElementById("runs").addEventListener("click", (event) => {
    const button = event.target.closest("button.open");
    if (button) toggleDetails(button.closest("tr"));
  });
  const filter = document.getElementById("filter");
  const matching = document.getElementById("matching");
  const textOf = (row) => {
    const pairs = pairsOf(DATA.runs[runOf(row)].config);
    return `${row.textContent} ${pairs.map((pair) => pair.join("=")).join(" ")}`.toLowerCase();
  };
  // Built at the first input, as most readers never filter.
  let texts = null;
  function apply() {
    const rows = runRows();
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length) texts ??= new Map(rows.map((row) => [row, textOf(row)]));
    let found = 0;
    for (const row of rows) {
      row.hidden = !words.every((word) => texts.get(row).includes(word));
      if (row.details) row.details.hidden = row.hidden;
      found += !row.hidden;
    }
    matching.textContent = words.length ? `${found} of ${rows.length} runs` : `${rows.length} runs`;
  }
  filter.addEventListener("input", apply);
  apply();
  return () => {
    texts = null;
    apply();
  };
}

// The keys that all of some runs have with the same value, and those that vary among them.
function commonConfig(runs) {
  if (!runs.length) return new Map();
  const [first, ...others] = runs.map((id) => DATA.runs[id].config);
  const places = others.map((own) => new Set(own));
  return new Map(first.map((place) => {
    const [key, value] = DATA.pairs[place];
    return [key, places.every((own) => own.has(place)) ? value : "varies"];
  }));
}

// Returns what fills the menus again.
function startDifference() {
  const menus = ["one", "other"].map((id) => document.getElementById(id));
  let choices = [];
  function fill() {
    const before = menus.map((menu) => choices[menu.value]?.[0]);
    const rows = DATA.rows.filter((row) => row.runs.length).map((row) => [row.label, row.runs]);
    const runs = runRows().map((row) => {
      const [, label, seed] = [...row.cells].map((cell) => cell.textContent);
      return [`run ${runOf(row)}: ${label}, seed ${seed}`, [runOf(row)]];
    });
    choices = [...rows, ...runs];
    menus.forEach((menu, number) => {
      menu.replaceChildren();
      for (const [title, some, start] of [["rows", rows, 0], ["runs", runs, rows.length]]) {
        const group = html("optgroup", { label: title }, menu);
        some.forEach(([label], i) => html("option", { value: start + i }, group, label));
      }
      const again = choices.findIndex(([label]) => label === before[number]);
      menu.value = again < 0 ? Math.min(number, choices.length - 1) : again;
    });
    show();
  }
  function show() {
    const body = document.querySelector("#difference tbody");
    body.replaceChildren();
    const [one, other] = menus.map((menu) => commonConfig(choices[menu.value]?.[1] ?? []));
    const keys = [...new Set([...one.keys(), ...other.keys()])].sort();
    const differing = keys.filter((key) => one.get(key) !== other.get(key));
    document.getElementById("differing").textContent = `${differing.length} of ${keys.length} keys differ`;
    for (const key of differing) {
      const line = html("tr", {}, body);
      html("th", { scope: "row" }, line, key);
      for (const own of [one, other]) html("td", {}, line, own.get(key) ?? "–");
    }
  }
  for (const menu of menus) menu.addEventListener("change", show);
  fill();
  return fill;
}
