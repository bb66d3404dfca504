"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const FIRST_SHOWN = 8;
const WITH_BANDS = 6;
const PANELS = 4;
// Curves with fewer points come from evaluations, which are means already.
const SMOOTHABLE = 40;

// Decodes what `pack` of page_data.py encodes: the upper three bytes of each float32.
function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const bits = new Uint32Array(bytes.length / 3);
  for (let i = 0; i < bits.length; i++) {
    bits[i] = ((bytes[3 * i + 2] << 24) | (bytes[3 * i + 1] << 16) | (bytes[3 * i] << 8)) >>> 0;
  }
  return new Float32Array(bits.buffer);
}

// Running mean over the last `window` points, without non-finite values.
function smoothed(values, window) {
  if (window === 1 || values.length < SMOOTHABLE) return values;
  return values.map((own, i) => {
    const some = values.slice(Math.max(0, i - window + 1), i + 1).filter(Number.isFinite);
    return Number.isFinite(own) ? some.reduce((a, b) => a + b, 0) / some.length : NaN;
  });
}

// Mean over runs at each step, with its 95 % Student t interval.
function meanAndBand(runs, length) {
  const { t } = DATA.curves;
  const [y, low, high] = [0, 0, 0].map(() => new Array(length).fill(NaN));
  let most = 0;
  for (let i = 0; i < length; i++) {
    const values = runs.map((run) => run[i]).filter(Number.isFinite);
    const n = values.length;
    most = Math.max(most, n);
    if (!n) continue;
    y[i] = values.reduce((a, b) => a + b, 0) / n;
    if (n < 2) continue;
    const squares = values.reduce((a, b) => a + (b - y[i]) ** 2, 0);
    const half = (t[n] * Math.sqrt(squares / (n - 1))) / Math.sqrt(n);
    [low[i], high[i]] = [y[i] - half, y[i] + half];
  }
  return { y, low: most > 1 ? low : null, high, n: most };
}

function startFigures() {
  const panels = document.getElementById("panels");
  const hidden = new Set(DATA.rows.slice(FIRST_SHOWN).filter((row) => row.runs.length).map((row) => row.label));
  const bands = document.getElementById("bands");
  const each = document.getElementById("each");
  const smooth = document.getElementById("smooth");
  const draws = [];
  const redraw = () => draws.forEach((draw) => draw());
  const metrics = new Map(DATA.curves.metrics.map((metric) => [metric.name, metric]));
  const cache = new Map();

  function seriesOf(metric, row) {
    const key = JSON.stringify([metric.name, smooth.value, row.label]);
    if (!cache.has(key)) {
      const known = row.runs.filter((id) => metric.runs[id]);
      const runs = known.map((id) => smoothed(unpack(metric.runs[id]), Number(smooth.value)));
      cache.set(key, { ...row, runs, within: metric.within, ...meanAndBand(runs, metric.steps.length) });
    }
    return cache.get(key);
  }

  function asChosen(series) {
    return { ...series, runs: each.checked ? series.runs : [], low: bands.checked ? series.low : null };
  }

  // Series of hidden rows are never computed, which keeps large pages quick.
  const shownRows = (rows) => rows.filter((row) => !hidden.has(row.label));

  function addChart({ head, host }, content) {
    const chart = new Chart(host, content);
    const reset = html("button", { type: "button", class: "reset" }, head, "reset zoom");
    reset.addEventListener("click", () => chart.reset());
    draws.push(() => chart.draw());
    return chart;
  }

  DATA.curves.metrics.slice(0, PANELS).forEach((first, number) => {
    const made = panel(panels);
    const menu = addMenu(made.head, `metric of figure ${number + 1}`, [...metrics.keys()].sort(), first.name);
    const chart = addChart(made, () => ({
      name: menu.value,
      x: metrics.get(menu.value).steps,
      xLabel: "training step",
      series: shownRows(DATA.rows).map((row) => seriesOf(metrics.get(menu.value), row)).filter((row) => row.n).map(asChosen),
    }));
    menu.addEventListener("change", () => chart.reset());
  });

  const looks = new Map(DATA.rows.map((row) => [row.label, row]));
  if (DATA.passk.lines) {
    const lines = DATA.passk.lines.map(({ law, mean, ...line }) => ({
      ...looks.get(line.label),
      ...line,
      y: mean.map((v) => v ?? NaN),
      low: line.n > 1 ? line.low.map((v) => v ?? NaN) : null,
      high: line.high.map((v) => v ?? NaN),
      within: [0, 1],
      runs: [],
      law: law && ((k) => Math.exp(-law[0] * (k + law[2]) ** -law[1])),
    }));
    const made = panel(panels);
    html("span", { class: "title" }, made.head, "pass@k after training");
    addChart(made, () => ({
      name: "pass@k", x: DATA.passk.ks, xLabel: "k", log: true, series: shownRows(lines).map(asChosen),
    }));
  }

  const columns = new Map(DATA.columns.map((column) => [column.name, column.runs]));
  if (columns.size > 1) {
    const made = panel(panels);
    const names = [...columns.keys()];
    const of = html("span", { class: "menus" }, made.head);
    const y = addMenu(of, "upwards", names, names.find((name) => name.startsWith("pass@")) || names[1]);
    of.append(" over ");
    const x = addMenu(of, "along", names, names[0]);
    const chart = addChart(made, () => ({
      name: y.value,
      xLabel: x.value,
      scatter: true,
      series: shownRows(DATA.rows).map((row) => {
        const [xs, ys] = [columns.get(x.value), columns.get(y.value)];
        const ids = row.runs.filter((id) => xs[id] !== undefined && ys[id] !== undefined);
        const names = ids.map((id) => `run ${id}`);
        return { ...row, runs: [], names, x: ids.map((id) => xs[id]), y: ids.map((id) => ys[id]) };
      }).filter((row) => row.x.length),
    }));
    for (const menu of [x, y]) menu.addEventListener("change", () => chart.reset());
  }

  draws.push(...addDistributions(panels, shownRows, looks));
  addHeatMap(panels, columns);
  drawLegend(hidden, redraw);
  writeNotes();
  // More bands would hide each other and the lines.
  bands.checked = shownRows(DATA.rows).filter((row) => row.runs.length).length <= WITH_BANDS;
  for (const control of [bands, each, smooth]) control.addEventListener("change", redraw);
  redraw();
}

function drawLegend(hidden, redraw) {
  const legend = document.getElementById("legend");
  const buttons = DATA.rows.map((row) => {
    const button = html("button", { type: "button", title: "shift-click shows it alone" }, legend);
    const sample = svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, button);
    const line = svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: "mean", "stroke-dasharray": DASHES[row.variant] || "" }, sample);
    line.style.setProperty("--own", row.colour);
    html("span", {}, button, row.label);
    button.addEventListener("click", (event) => {
      if (event.shiftKey) show((label) => label === row.label);
      else show((label) => (label === row.label) === hidden.has(label));
    });
    return button;
  });

  function update() {
    DATA.rows.forEach((row, i) => buttons[i].setAttribute("aria-pressed", String(!hidden.has(row.label))));
  }

  function show(wanted) {
    for (const { label } of DATA.rows) {
      if (wanted(label)) hidden.delete(label);
      else hidden.add(label);
    }
    update();
    redraw();
  }

  for (const [text, wanted] of [["all", () => true], ["none", () => false]]) {
    const button = html("button", { type: "button", class: "plain" }, legend, text);
    button.addEventListener("click", () => show(wanted));
  }
  if (DATA.rows.length > FIRST_SHOWN) {
    const words = html("input", { type: "search", placeholder: "show rows with these words", "aria-label": "show rows with these words" });
    legend.prepend(words);
    words.addEventListener("input", () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      show((label) => wanted.every((word) => label.toLowerCase().includes(word)));
    });
  }
  update();
}

function writeNotes() {
  const notes = document.getElementById("figure-notes");
  const pers = [...new Set(DATA.curves.metrics.map((metric) => metric.per))].sort((a, b) => a - b);
  const lines = ["curves: means over seeds, with 95 % Student t bands where there are two seeds or more"];
  if (pers[pers.length - 1] > 1) {
    lines.push(`curves are thinned: a point is the mean over up to ${pers[pers.length - 1]} neighbouring recorded steps, and bands are of that mean`);
  }
  if (DATA.curves.left_out.length) {
    lines.push(`metrics left out, to keep this page small: ${DATA.curves.left_out.join(", ")}`);
  }
  if (DATA.rows.filter((row) => row.runs.length).length > FIRST_SHOWN) {
    lines.push(`at first ${FIRST_SHOWN} rows are shown; the buttons above, or words of their labels, show others`);
  }
  if (DATA.columns.length > 1) lines.push("points of one column over another: one for each run, after its training");
  const noted = [
    ["pass@k", DATA.passk], ["difficulty levels", DATA.levels],
    ["solve rates of the problems", DATA.difficulty], ["successes in the groups", DATA.solved],
  ];
  for (const [what, { refused, notes: own = [] }] of noted) {
    lines.push(...(refused ? [`no ${what}: ${refused}`] : own.map((note) => `${what}: ${note}`)));
  }
  for (const line of lines) html("li", {}, notes, line);
}
