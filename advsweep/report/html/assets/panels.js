"use strict";

const FORESTS = 4;

function panel(host, wide = false) {
  const figure = html("figure", { class: wide ? "panel wide" : "panel" }, host);
  const head = html("figcaption", {}, figure);
  return { figure, head, host: html("div", { class: "host" }, figure) };
}

function addMenu(host, label, names, value) {
  const menu = html("select", { "aria-label": label }, host);
  for (const name of names) html("option", { value: name }, menu, name);
  menu.value = value;
  return menu;
}

/*
 * Differences with their intervals, a line for each, as text with a track next to it:
 * {label, mean, low, high, text, outcome}.
 */
function drawDifferences(host, lines) {
  const means = [...lines.map((line) => line.mean).filter(Number.isFinite), 0];
  const ends = lines.flatMap((line) => [line.low, line.high]).filter(Number.isFinite);
  let [low, high] = extent(means);
  const span = high - low || 1;
  // A very wide interval would flatten the others: it leaves the track.
  low = Math.max(low - 1.5 * span, Math.min(low, ...ends));
  high = Math.min(high + 1.5 * span, Math.max(high, ...ends));
  const margin = 0.04 * (high - low);
  [low, high] = [low - margin, high + margin];
  const place = (value) => `${((value - low) / (high - low)) * 100}%`;
  const box = html("div", { class: "intervals" });
  for (const line of lines) {
    const row = html("div", { class: "line", "data-outcome": line.outcome }, box);
    html("span", { class: "what", title: line.label }, row, line.label);
    const track = html("span", { class: "track", "aria-hidden": "true" }, row);
    html("i", { class: "zero" }, track).style.left = place(0);
    if (Number.isFinite(line.low)) {
      const whisker = html("i", { class: "whisker" }, track);
      whisker.style.left = place(line.low);
      whisker.style.right = `${100 - parseFloat(place(line.high))}%`;
    }
    if (Number.isFinite(line.mean)) html("i", { class: "dot" }, track).style.left = place(line.mean);
    html("span", { class: "value" }, row, line.text);
  }
  const row = html("div", { class: "line ticks", "aria-hidden": "true" }, box);
  html("span", { class: "what" }, row);
  const track = html("span", { class: "track" }, row);
  for (const [value, text] of niceTicks(low, high, 3)) html("i", {}, track, text).style.left = place(value);
  host.replaceChildren(box);
}

function startForests() {
  const host = document.getElementById("forests");
  if (!host) return;
  const columns = new Map(DATA.differences.map((column) => [column.name, column]));
  DATA.differences.slice(0, FORESTS).forEach((first, number) => {
    const made = panel(host);
    const menu = addMenu(made.head, `difference ${number + 1}`, [...columns.keys()], first.name);
    const hint = html("span", { class: "hint" }, made.head);
    const draw = () => {
      const { lines, better, primary } = columns.get(menu.value);
      const parts = [better === "neither" ? "" : `${better} is better`, primary ? "" : "descriptive"];
      hint.textContent = parts.filter(Boolean).join(", ");
      drawDifferences(made.host, lines);
    };
    menu.addEventListener("change", draw);
    draw();
  });
}

function sortedValues(values) {
  return [...new Set(values)].sort((a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return (typeof b === "number") - (typeof a === "number") || compare(a, b);
  });
}

// Rows by their place in a heat map of two keys.
function placeRows(rows, x, y) {
  const some = rows.filter((row) => x in row.keys && y in row.keys);
  const [xs, ys] = [x, y].map((key) => sortedValues(some.map((row) => row.keys[key])));
  const places = new Map();
  for (const row of some) {
    const place = `${ys.indexOf(row.keys[y])} ${xs.indexOf(row.keys[x])}`;
    places.set(place, [...(places.get(place) || []), row]);
  }
  return { xs, ys, places };
}

const valueOf = (row, key) => String(row.keys[key] ?? "–");

// Values of other keys, so that most cells have a single row; a key without one may have any.
function separate(rows, x, y, others) {
  const chosen = new Map();
  let some = rows.filter((row) => x in row.keys && y in row.keys);
  for (const key of others) {
    const places = [...placeRows(some, x, y).places.values()];
    if (places.filter((own) => own.length > 1).length * 2 <= places.length) break;
    const counts = new Map();
    for (const row of some) counts.set(valueOf(row, key), (counts.get(valueOf(row, key)) || 0) + 1);
    const [value] = [...counts].sort(([, a], [, b]) => b - a)[0];
    chosen.set(key, value);
    some = some.filter((row) => valueOf(row, key) === value);
  }
  return chosen;
}

/* A heat map of any column over two keys; menus choose the values of other keys that vary. */
function addHeatMap(host, columns) {
  const rows = DATA.rows.filter((row) => row.runs.length);
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row.keys)))];
  const pairs = keys.flatMap((y, i) => keys.slice(i + 1).map((x) => ({ x, y, ...placeRows(rows, x, y) })))
    .filter(({ xs, ys }) => xs.length > 1 && ys.length > 1)
    .sort((a, b) => b.places.size - a.places.size);
  if (!pairs.length || !columns.size) return;
  const varying = [...new Set(pairs.flatMap((pair) => [pair.x, pair.y]))];
  const made = panel(host, true);
  made.host.classList.add("heat");
  const of = html("span", { class: "menus" }, made.head);
  const names = [...columns.keys()];
  const column = addMenu(of, "number of the heat map", names, columns.has("pass@1") ? "pass@1" : names[0]);
  of.append(" over ");
  const x = addMenu(of, "key along", varying, pairs[0].x);
  of.append(" and ");
  const y = addMenu(of, "key upwards", varying, pairs[0].y);
  const rest = html("span", { class: "rest" }, of);
  let menus = new Map();

  function content() {
    const some = rows.filter((row) => [...menus].every(([key, menu]) => menu.value === "any" || valueOf(row, key) === menu.value));
    const { xs, ys, places } = placeRows(some, x.value, y.value);
    const values = columns.get(column.value);
    const found = ys.map((_, row) => xs.map((_, at) => {
      const own = places.get(`${row} ${at}`) || [];
      // Rows that differ in another key are no replicates: their cell has no number.
      if (own.length !== 1) return { mean: NaN, texts: own.length ? [`${own.length} rows`] : [] };
      const runs = own[0].runs.filter((id) => values[id] !== undefined).map((id) => [values[id]]);
      if (!runs.length) return { mean: NaN, texts: [] };
      const { y: [mean], high, n } = meanAndBand(runs, 1);
      return { mean, texts: [shortInterval(mean, high[0] - mean), `n = ${n}`] };
    }));
    const means = found.map((line) => line.map((cell) => cell.mean));
    const ticks = (own) => own.map((value, i) => [i, String(value)]);
    const edges = (own) => [...own, null].map((_, i) => i - 0.5);
    return {
      name: column.value, xLabel: x.value, series: [], xTicks: ticks(xs), yTicks: ticks(ys),
      cells: {
        x: edges(xs), y: edges(ys), values: means, gamma: 1,
        within: extent(means.flat().filter(Number.isFinite)), texts: (row, at) => found[row][at].texts,
      },
    };
  }

  function chooseKeys() {
    const some = rows.filter((row) => x.value in row.keys && y.value in row.keys);
    const others = keys.filter((key) => key !== x.value && key !== y.value
      && new Set(some.map((row) => valueOf(row, key))).size > 1);
    const chosen = separate(rows, x.value, y.value, others);
    rest.replaceChildren();
    menus = new Map(others.map((key) => {
      const label = html("label", {}, rest, ` ${key} `);
      const values = ["any", ...sortedValues(some.map((row) => valueOf(row, key)))];
      return [key, addMenu(label, `${key} of the heat map`, values, chosen.get(key) || "any")];
    }));
    for (const menu of menus.values()) menu.addEventListener("change", () => chart.draw());
    chart.height = 60 + 46 * new Set(some.map((row) => row.keys[y.value])).size;
    chart.draw();
  }

  const chart = new Chart(made.host, content);
  column.addEventListener("change", () => chart.draw());
  for (const menu of [x, y]) menu.addEventListener("change", chooseKeys);
  chooseKeys();
}
