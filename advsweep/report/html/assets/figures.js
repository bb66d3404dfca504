"use strict";

let DATA = JSON.parse(document.getElementById("data").textContent);
const WITH_BANDS = 6;
const PANELS = 4;
// Curves with fewer points come from evaluations, which are means already.
const SMOOTHABLE = 40;

const AXES = { steps: "training step", rollouts: "rollouts drawn", seconds: "training seconds" };

// JSON has no NaN.
const numbers = (values) => values && values.map((value) => value ?? NaN);

// Running mean over the last `window` points, without non-finite values.
function smoothed(values, window) {
  if (window === 1 || values.length < SMOOTHABLE) return values;
  return values.map((own, i) => {
    const some = values.slice(Math.max(0, i - window + 1), i + 1).filter(Number.isFinite);
    return Number.isFinite(own) ? average(some) : NaN;
  });
}

const average = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// What a run had spent after a step: DATA.spent has its last step, and the totals at equal distances
// from step 0 to it.
function spentAfter([last, ...totals], step) {
  const at = Math.min(step / last, 1) * (totals.length - 1);
  const i = Math.min(Math.floor(at), totals.length - 2);
  return totals[i] + (at - i) * (totals[i + 1] - totals[i]);
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
    y[i] = average(values);
    if (n < 2) continue;
    const squares = values.reduce((a, b) => a + (b - y[i]) ** 2, 0);
    const half = (t[n] * Math.sqrt(squares / (n - 1))) / Math.sqrt(n);
    [low[i], high[i]] = [y[i] - half, y[i] + half];
  }
  return { y, low: most > 1 ? low : null, high, n: most };
}

// Draws the figures; returns what draws those of renewed data, with all that was chosen.
function startFigures() {
  const panels = document.getElementById("panels");
  const [bands, each, axis, logX, logY, smooth] = ["bands", "each", "axis", "log-x", "log-y", "smooth"].map((id) => document.getElementById(id));
  const hidden = new Set();
  const known = new Set(); // labels
  let metrics, columns, looks, cache;
  let [charts, curves] = [[], []];
  let [builtPanels, builtLegend] = ["", ""];
  const redraw = () => charts.forEach((chart) => chart.draw());

  function seriesOf(metric, row) {
    const key = JSON.stringify([metric.name, axis.value, smooth.value, row.label]);
    if (!cache.has(key)) {
      const { steps } = metric;
      const spent = DATA.spent[axis.value];
      const known = row.runs.filter((id) => metric.runs[id] && (!spent || spent[id]));
      const own = { ...row, within: metric.within };
      const runs = known.map((id) => ({
        ...own, mark: "run",
        x: spent ? steps.map((step) => spentAfter(spent[id], step)) : steps,
        y: smoothed(numbers(metric.runs[id]), Number(smooth.value)),
      }));
      // The runs that have a value of a step are at its mean x.
      const meanX = (i) => {
        const some = runs.filter(({ y }) => Number.isFinite(y[i]));
        return average((some.length ? some : runs).map(({ x }) => x[i]));
      };
      const x = spent ? steps.map((_, i) => meanX(i)) : steps;
      cache.set(key, { ...own, mark: "mean", x, runs, ...meanAndBand(runs.map(({ y }) => y), steps.length) });
    }
    return cache.get(key);
  }

  // Series of hidden rows are never computed, which keeps large pages quick.
  const isShown = (label) => !hidden.has(label);
  const shownRows = () => DATA.rows.filter((row) => isShown(row.label));
  const asChosen = (series) => ({ ...series, low: bands.checked || series.mark === "points" ? series.low : null });

  function addChart({ head, host }, content) {
    const chart = new Chart(host, content);
    const reset = html("button", { type: "button", class: "reset" }, head, "reset zoom");
    reset.addEventListener("click", () => chart.reset());
    charts.push(chart);
    return chart;
  }

  function addCurves(first, number) {
    const made = panel(panels);
    const menu = addMenu(made.head, `metric of figure ${number + 1}`, [...metrics.keys()].sort(), first.name);
    const chart = addChart(made, () => {
      const rows = shownRows().map((row) => seriesOf(metrics.get(menu.value), row)).filter((row) => row.n);
      const runs = each.checked ? rows.flatMap((row) => row.runs) : [];
      return { name: menu.value, xLabel: AXES[axis.value], log: logX.checked, logY: logY.checked, series: [...runs, ...rows.map(asChosen)] };
    });
    menu.addEventListener("change", () => chart.reset());
    return chart;
  }

  function addScatter() {
    const made = panel(panels);
    const names = [...columns.keys()];
    const of = html("span", { class: "menus" }, made.head);
    const y = addMenu(of, "upwards", names, names.find((name) => name.startsWith("p@")) || names[1]);
    of.append(" over ");
    const x = addMenu(of, "along", names, names[0]);
    const chart = addChart(made, () => ({
      name: y.value,
      xLabel: x.value,
      series: shownRows().map((row) => {
        const [xs, ys] = [columns.get(x.value), columns.get(y.value)];
        const ids = row.runs.filter((id) => xs[id] !== undefined && ys[id] !== undefined);
        const names = ids.map((id) => `run ${id}`);
        return { ...row, mark: "points", names, x: ids.map((id) => xs[id]), y: ids.map((id) => ys[id]) };
      }).filter((row) => row.x.length),
    }));
    for (const menu of [x, y]) menu.addEventListener("change", () => chart.reset());
  }

  // A figure of `advsweep plot`.
  function addFigure(title, find) {
    const made = panel(panels);
    const { title: part } = find();
    html("span", { class: "title" }, made.head, `${title}${part && `: ${part}`}`);
    addChart(made, () => {
      const part = find();
      const series = part.series.filter(({ label }) => isShown(label)).map((line) => ({
        ...looks.get(line.label), ...line, within: part.within,
        y: numbers(line.y), low: numbers(line.low), high: numbers(line.high),
      }));
      return { ...part, name: title, series: series.map(asChosen) };
    });
  }

  function buildPanels() {
    panels.replaceChildren();
    charts = [];
    curves = DATA.curves.metrics.slice(0, PANELS).map(addCurves);
    if (columns.size > 1) addScatter();
    DATA.figures.forEach(({ title, panels: parts }, number) => {
      parts.forEach((_, place) => addFigure(title, () => DATA.figures[number].panels[place]));
    });
  }

  // The first rows are shown; later ones that join them as long as there is room.
  function hideMany() {
    let shown = DATA.rows.filter((row) => row.runs.length && known.has(row.label) && isShown(row.label)).length;
    for (const { label, runs } of DATA.rows) {
      if (known.has(label)) continue;
      known.add(label);
      if (!runs.length) continue;
      if (shown < DATA.first) shown += 1;
      else hidden.add(label);
    }
  }

  function show() {
    metrics = new Map(DATA.curves.metrics.map((metric) => [metric.name, metric]));
    columns = new Map(DATA.columns.map((column) => [column.name, column.runs]));
    looks = new Map(DATA.rows.map((row) => [row.label, row]));
    cache = new Map();
    hideMany();
    for (const [name, text] of Object.entries(AXES)) {
      if (name !== "steps" && !DATA.spent[name]) continue;
      if (![...axis.options].some((option) => option.value === name)) html("option", { value: name }, axis, text);
    }
    const parts = DATA.figures.map(({ title, panels: parts }) => [title, parts.map((part) => part.title)]);
    const needed = JSON.stringify([[...metrics.keys()], [...columns.keys()], parts]);
    if (needed !== builtPanels) buildPanels();
    builtPanels = needed;
    const rows = JSON.stringify(DATA.rows.map(({ label, colour, variant }) => [label, colour, variant]));
    if (rows !== builtLegend) drawLegend(hidden, redraw);
    builtLegend = rows;
    const notes = document.getElementById("figure-notes");
    notes.replaceChildren();
    for (const line of DATA.notes) html("li", {}, notes, line);
    redraw();
  }

  for (const control of [bands, each, smooth, logY]) control.addEventListener("change", redraw);
  for (const control of [axis, logX]) control.addEventListener("change", () => curves.forEach((chart) => chart.reset()));
  // More bands would hide each other and the lines.
  bands.checked = DATA.rows.filter((row) => row.runs.length).slice(0, DATA.first).length <= WITH_BANDS;
  show();
  return show;
}

function drawLegend(hidden, redraw) {
  const legend = document.getElementById("legend");
  legend.replaceChildren();
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
  if (DATA.rows.length > DATA.first) {
    const words = html("input", { type: "search", placeholder: "show rows with these words", "aria-label": "show rows with these words" });
    legend.prepend(words);
    words.addEventListener("input", () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      show((label) => wanted.every((word) => label.toLowerCase().includes(word)));
    });
  }
  update();
}
