"use strict";

// Matplotlib's cividis at five places, which any kind of colour vision distinguishes.
const SHADES = [[0, 34, 78], [66, 78, 108], [124, 123, 120], [187, 175, 107], [254, 232, 56]];
const SMALL = { width: 260, height: 156, left: 34, right: 14, top: 6, bottom: 32 };
const FORESTS = 4;
const BESIDE_TRACK = 24; // characters of a name
const LAWS = ["", "4 3"];

function panel(host, wide = false) {
  const figure = html("figure", { class: wide ? "panel wide" : "panel" }, host);
  const head = html("figcaption", {}, figure);
  return { head, host: html("div", { class: "host" }, figure) };
}

function addMenu(host, label, names, value) {
  const menu = html("select", { "aria-label": label }, host);
  for (const name of names) html("option", { value: name }, menu, name);
  menu.value = value;
  return menu;
}

function shadeOf(share) {
  const at = Math.min(Math.max(share, 0), 1) * (SHADES.length - 1);
  const i = Math.min(Math.floor(at), SHADES.length - 2);
  return `rgb(${SHADES[i].map((low, c) => Math.round(low + (SHADES[i + 1][c] - low) * (at - i))).join(" ")})`;
}

/*
 * Points with intervals, a line for each, as text with a track beside it. `groups` are
 * {title, lines: [{label, colour, mean, low, high, text, outcome}]} on one axis. `zero` marks 0;
 * `within` are the least and the greatest possible value.
 */
function drawIntervals(host, groups, { zero = false, within = [-Infinity, Infinity] } = {}) {
  const lines = groups.flatMap((group) => group.lines);
  const means = [...lines.map((line) => line.mean).filter(Number.isFinite), ...(zero ? [0] : [])];
  const ends = lines.flatMap((line) => [line.low, line.high]).filter(Number.isFinite);
  let [low, high] = means.length ? extent(means) : [0, 1];
  const span = high - low || 0.1 * Math.abs(high) || 1;
  // A very wide interval would flatten the others: it leaves the track.
  low = Math.max(low - 1.5 * span, Math.min(low, ...ends), within[0]);
  high = Math.min(high + 1.5 * span, Math.max(high, ...ends), within[1]);
  const margin = 0.04 * (high - low) || 0.5 * span;
  [low, high] = [low - margin, high + margin];
  const place = (value) => `${((value - low) / (high - low)) * 100}%`;
  // Several groups stand beside each other, where long names would leave no room for tracks.
  const stacked = groups.length > 1 && lines.some((line) => line.label.length > BESIDE_TRACK);
  const boxes = groups.map(({ title, lines: own }) => {
    const box = html("div", { class: stacked ? "intervals stacked" : "intervals" });
    if (title) html("h4", {}, box, title);
    for (const line of own) {
      const row = html("div", { class: "line" }, box);
      if (line.outcome) row.dataset.outcome = line.outcome;
      if (line.colour) row.style.setProperty("--own", line.colour);
      html("span", { class: "what", title: line.label }, row, line.label);
      const track = html("span", { class: "track", "aria-hidden": "true" }, row);
      if (zero) html("i", { class: "zero" }, track).style.left = place(0);
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
    return box;
  });
  host.replaceChildren(...boxes);
}

/* Axes of a small figure; `plot` takes what is drawn in it, `px` and `py` place it. */
function smallAxes(host, title, { x, y, xTicks, yTicks, xLabel, yLabel }) {
  const { width, height, left, right, top, bottom } = SMALL;
  const figure = html("figure", { class: "small" }, host);
  html("figcaption", { title }, figure, title);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${yLabel} over ${xLabel}` }, figure);
  const px = (v) => left + ((v - x[0]) / (x[1] - x[0])) * (width - left - right);
  const py = (v) => height - bottom - ((v - y[0]) / (y[1] - y[0])) * (height - top - bottom);
  const axes = svg("g", { class: "axes" }, root);
  for (const [value, text] of yTicks) {
    svg("line", { class: "rule", x1: left, x2: width - right, y1: py(value), y2: py(value) }, axes);
    svg("text", { class: "tick-y", x: left - 4, y: py(value) + 3 }, axes).textContent = text;
  }
  const plot = svg("g", {}, root);
  for (const [value, text] of xTicks) {
    svg("text", { class: "tick-x", x: px(value), y: height - bottom + 11 }, axes).textContent = text;
  }
  svg("text", { class: "label", x: (left + width - right) / 2, y: height - 6 }, axes).textContent = xLabel;
  return { plot, px, py };
}

function drawHistogram(host, { label, colour, counts, samples, shares, laws }, top) {
  const { plot, px, py } = smallAxes(host, label, {
    x: [0, 1], y: [0, top], xTicks: [[0, "0"], [0.5, "0.5"], [1, "1"]], yTicks: niceTicks(0, top, 3),
    xLabel: "solve rate", yLabel: "share of problems",
  });
  const edges = counts.map((count) => count / (samples + 1));
  plot.style.setProperty("--own", colour);
  shares.forEach((share, i) => {
    const bar = svg("rect", {
      class: "bar", x: px(edges[i]), width: Math.max(px(edges[i + 1]) - px(edges[i]) - 1, 0.5),
      y: py(share), height: py(0) - py(share),
    }, plot);
    const last = counts[i + 1] - 1;
    const solved = counts[i] === last ? `${last}` : `${counts[i]} to ${last}`;
    svg("title", {}, bar).textContent = `${solved} of ${samples} samples right: ${short(share)} of the problems`;
  });
  laws.forEach((law, number) => {
    if (!law) return;
    const points = law.map((share, i) => `${px((edges[i] + edges[i + 1]) / 2).toFixed(1)},${py(Math.min(share, top)).toFixed(1)}`);
    svg("polyline", { class: "fit", points: points.join(" "), "stroke-dasharray": LAWS[number] }, plot);
  });
}

function drawSolvedGroups(host, { label, size, steps, shares }, most) {
  const counts = shares[0].length;
  const half = Math.floor((counts - 1) / 2);
  const rows = [...new Set([0, half, counts - 1])];
  const first = steps[0];
  const last = steps[steps.length - 1];
  const { plot, px, py } = smallAxes(host, label, {
    x: [first, last], y: [-0.5, counts - 0.5], xTicks: niceTicks(first, last, 3),
    yTicks: rows.map((k) => [k, String(Math.round((k * size) / (counts - 1)))]),
    xLabel: "training step", yLabel: "successes in a group",
  });
  plot.setAttribute("shape-rendering", "crispEdges");
  shares.forEach((window, i) => window.forEach((share, k) => {
    if (share === null) return;
    const cell = svg("rect", {
      x: px(steps[i]), width: px(steps[i + 1]) - px(steps[i]) + 0.2, y: py(k + 0.5), height: py(k - 0.5) - py(k + 0.5) + 0.2,
      // The square root tells small shares apart.
      fill: shadeOf(Math.sqrt(share / most)),
    }, plot);
    const until = steps[i + 1] - 1;
    const when = steps[i] === until ? `step ${until}` : `steps ${steps[i]} to ${until}`;
    svg("title", {}, cell).textContent = `${when}, ${Math.round((k * size) / (counts - 1))} of ${size} right: ${short(share)} of the groups`;
  }));
}

function addScale(host, most) {
  const scale = html("div", { class: "scale", "aria-hidden": "true" }, host);
  html("span", {}, scale, "0");
  const bar = html("i", {}, scale);
  const stops = Array.from({ length: 9 }, (_, i) => shadeOf(Math.sqrt(i / 8)));
  bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  html("span", {}, scale, `${short(most)} of the groups`);
}

/* A table of means with coloured cells: {x, y, xs, ys, cells}, a cell by the places of y and x. */
function drawHeatMap(host, { x, y, xs, ys, cells }) {
  const box = html("div", { class: "scroll" });
  const table = html("table", { class: "heat" }, box);
  const head = html("thead", {}, table);
  const above = html("tr", {}, head);
  html("td", {}, above);
  html("th", { colspan: xs.length, scope: "colgroup" }, above, x);
  const names = html("tr", {}, head);
  html("th", { scope: "col" }, names, y);
  for (const value of xs) html("th", { scope: "col" }, names, String(value));
  const body = html("tbody", {}, table);
  const known = [...cells.values()].map((cell) => cell.mean).filter(Number.isFinite);
  const [low, high] = extent(known);
  ys.forEach((value, row) => {
    const line = html("tr", {}, body);
    html("th", { scope: "row" }, line, String(value));
    xs.forEach((_, column) => {
      const found = cells.get(`${row} ${column}`);
      const cell = html("td", {}, line);
      if (!found) return;
      if (found.rows > 1) {
        cell.className = "mixed";
        cell.textContent = `${found.rows} rows`;
        return;
      }
      const share = high > low ? (found.mean - low) / (high - low) : 0.5;
      cell.style.background = shadeOf(share);
      cell.style.color = share > 0.5 ? "#000" : "#fff";
      html("div", {}, cell, shortInterval(found.mean, found.half));
      html("small", {}, cell, `n = ${found.n}`);
    });
  });
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
      drawIntervals(made.host, [{ lines }], { zero: true });
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

function addHeatMap(host, columns) {
  const rows = DATA.rows.filter((row) => row.runs.length);
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row.keys)))];
  const pairs = keys.flatMap((y, i) => keys.slice(i + 1).map((x) => ({ x, y, ...placeRows(rows, x, y) })))
    .filter(({ xs, ys }) => xs.length > 1 && ys.length > 1)
    .sort((a, b) => b.places.size - a.places.size);
  if (!pairs.length || !columns.size) return;
  const varying = [...new Set(pairs.flatMap((pair) => [pair.x, pair.y]))];
  const made = panel(host, true);
  const of = html("span", { class: "menus" }, made.head);
  const names = [...columns.keys()];
  const column = addMenu(of, "number of the heat map", names, columns.has("pass@1") ? "pass@1" : names[0]);
  of.append(" over ");
  const x = addMenu(of, "key along", varying, pairs[0].x);
  of.append(" and ");
  const y = addMenu(of, "key downwards", varying, pairs[0].y);
  const rest = html("span", { class: "rest" }, of);
  let menus = new Map();

  function draw() {
    const some = rows.filter((row) => [...menus].every(([key, menu]) => menu.value === "any" || valueOf(row, key) === menu.value));
    const { xs, ys, places } = placeRows(some, x.value, y.value);
    const values = columns.get(column.value);
    const cells = new Map();
    for (const [place, own] of places) {
      const runs = own[0].runs.filter((id) => values[id] !== undefined).map((id) => [values[id]]);
      // Rows that differ in another key are no replicates: their cell has no number.
      if (own.length > 1) cells.set(place, { rows: own.length });
      else if (runs.length) {
        const { y: [mean], high, n } = meanAndBand(runs, 1);
        cells.set(place, { rows: 1, mean, half: high[0] - mean, n });
      }
    }
    drawHeatMap(made.host, { x: x.value, y: y.value, xs, ys, cells });
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
    for (const menu of menus.values()) menu.addEventListener("change", draw);
    draw();
  }

  column.addEventListener("change", draw);
  for (const menu of [x, y]) menu.addEventListener("change", chooseKeys);
  chooseKeys();
}

/* Adds levels and histograms; returns what draws them anew when other rows are shown. */
function addDistributions(host, shownRows, looks) {
  const styled = (line) => ({ ...looks.get(line.label), ...line });
  const draws = [];
  const { levels, difficulty, solved } = DATA;
  if (levels.bars) {
    const made = panel(host, true);
    made.host.classList.add("multiples");
    html("span", { class: "title" }, made.head, "by difficulty level");
    const k = addMenu(made.head, "k of the levels", levels.ks.map((own) => `pass@${own}`), `pass@${levels.ks[0]}`);
    const draw = () => {
      const bars = shownRows(levels.bars.filter((own) => `pass@${own.k}` === k.value).map(styled));
      const groups = levels.levels.map((title, i) => ({
        title,
        lines: bars.map(({ label, colour, mean, low, high }) => {
          const [at, from, to] = [mean, low, high].map((own) => own[i] ?? NaN);
          return { label, colour, mean: at, low: from, high: to, text: shortInterval(at, to - at) };
        }),
      }));
      drawIntervals(made.host, groups, { within: [0, 1] });
    };
    k.addEventListener("change", draw);
    draws.push(draw);
  }
  const multiples = (title, hint, drawAll) => {
    const made = panel(host, true);
    html("span", { class: "title" }, made.head, title);
    html("span", { class: "hint" }, made.head, hint);
    made.host.classList.add("multiples");
    draws.push(() => {
      made.host.replaceChildren();
      drawAll(made.host);
    });
  };
  if (difficulty.panels) {
    multiples("solve rates of the problems after training", "solid line: one beta fitted, dashed: two", (own) => {
      const panels = shownRows(difficulty.panels.map(styled));
      const top = Math.max(...panels.flatMap((one) => one.shares)) * 1.08;
      for (const one of panels) drawHistogram(own, one, top);
    });
  }
  if (solved.panels) {
    multiples("successes in the groups over the training", "colour: share of the groups", (own) => {
      const panels = shownRows(solved.panels.map(styled));
      const most = extent(panels.flatMap((one) => one.shares.flat()))[1];
      for (const one of panels) drawSolvedGroups(own, one, most);
      if (panels.length) addScale(own, most);
    });
  }
  return draws;
}
