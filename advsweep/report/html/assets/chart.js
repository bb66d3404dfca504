"use strict";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { right: 14, top: 10, bottom: 36 };
const LEFT = 56;
const HEIGHT = 270;
const IN_READOUT = 9;
const REACH = 12; // pixels
// The dashes of `advsweep plot`.
const DASHES = ["", "7 3", "2 2.5", "8 3 2 3"];

function svg(tag, attributes, parent, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  // Not as markup: names and configs may contain anything.
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function html(tag, attributes, parent, text) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function short(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function extent(values) {
  return values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
}

// Formats as the tables do: half the interval with two digits, the mean with as many places.
function shortInterval(mean, half) {
  if (!Number.isFinite(half) || half <= 0) return short(mean);
  const digits = 1 - Math.floor(Math.log10(half));
  if (digits > 6 || half >= 1e5) return `${short(mean)} ±${short(half)}`;
  const places = Math.max(digits, 0);
  return `${mean.toFixed(places)} ±${half.toFixed(places)}`;
}

function niceTicks(low, high, about) {
  const raw = (high - low) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const far = Math.max(Math.abs(low), Math.abs(high)) >= 1e5 || digits > 4;
  const text = (t) => (far && t ? Number(t.toPrecision(3)).toExponential() : t.toFixed(far ? 0 : digits));
  return ticks.map((t) => [t, text(t)]);
}

// Powers of ten between two logarithms, with 2 and 5 times these if there are few.
function logTicks(low, high) {
  const [every, factors] = high - low > 3 ? [Math.ceil((high - low) / 8), [1]] : [1, [1, 2, 5]];
  const ticks = [];
  for (let power = Math.floor(low); power <= high; power += every) ticks.push(...factors.map((m) => m * 10 ** power));
  const inside = ticks.filter((t) => Math.log10(t) >= low && Math.log10(t) <= high);
  return inside.length > 2 ? inside.map((t) => [t, short(t)]) : niceTicks(10 ** low, 10 ** high, 4);
}

/*
 * A chart of a panel, as `Panel` of figures/chart.py has it. It calls `content()` for what to draw:
 *   {name, xLabel, log, logY, xTicks, yLimits, within, series}
 * with series of {label, colour, variant, mark, x, y, low, high, names}: `names` are those of the
 * points.
 */
class Chart {
  constructor(host, content) {
    this.host = host;
    this.content = content;
    this.height = HEIGHT;
    this.zoom = null;
    this.root = svg("svg", { class: "chart", role: "img" }, host);
    this.readout = html("div", { class: "readout", hidden: "" }, host);
    this.clip = `clip-${Chart.count++}`;
    this.listen();
    new ResizeObserver(() => {
      if (host.isConnected && host.clientWidth !== this.width) this.draw();
    }).observe(host);
  }

  draw() {
    const shown = this.content();
    const { root, height } = this;
    this.shown = shown;
    this.width = this.host.clientWidth;
    this.left = Math.min(LEFT, this.width / 3);
    root.replaceChildren();
    root.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    root.setAttribute("height", height);
    root.setAttribute("aria-label", `${shown.name} over ${shown.xLabel}, ${shown.series.length} series`);
    this.setDomain(shown);
    this.drawAxes(shown);
    const clip = svg("clipPath", { id: this.clip }, svg("defs", {}, root));
    svg("rect", { x: this.left, y: MARGIN.top, width: this.innerWidth, height: this.innerHeight }, clip);
    const plot = svg("g", { "clip-path": `url(#${this.clip})` }, root);
    for (const series of shown.series) this.drawBand(plot, series);
    for (const series of shown.series) this.drawSeries(plot, series);
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: MARGIN.top + this.innerHeight, visibility: "hidden" }, root);
    this.frame = svg("rect", { class: "frame", y: MARGIN.top, height: this.innerHeight, visibility: "hidden" }, root);
    if (!shown.series.length) {
      svg("text", { x: this.width / 2, y: height / 2, class: "empty" }, root, "no row that is shown has it");
    }
    root.dataset.domain = JSON.stringify(this.domain);
    if (this.at) this.hover(this.at);
    this.host.classList.toggle("zoomed", this.zoom !== null);
  }

  get innerWidth() { return Math.max(this.width - this.left - MARGIN.right, 10); }
  get innerHeight() { return this.height - MARGIN.top - MARGIN.bottom; }

  setDomain({ series, log, logY, yLimits }) {
    const logarithm = (v) => (v > 0 ? Math.log10(v) : -Infinity);
    const along = log ? logarithm : (v) => v;
    const up = logY ? logarithm : (v) => v;
    const all = series.flatMap((own) => [...own.x]).map(along).filter(Number.isFinite);
    let [left, right] = all.length ? extent(all) : [0, 1];
    if (right === left) [left, right] = [left - 0.5, right + 0.5];
    // Without a margin, points at the edge would be cut in half.
    const margin = series.some((own) => own.mark === "points" || own.mark === "banded") ? 0.02 * (right - left) : 0;
    const x = this.zoom || [left - margin, right + margin];
    const y = yLimits || this.fitY(series, along, up, x);
    this.domain = { x, y };
    this.px = (v) => this.left + ((along(v) - x[0]) / (x[1] - x[0])) * this.innerWidth;
    this.py = (v) => MARGIN.top + (1 - (up(v) - y[0]) / (y[1] - y[0])) * this.innerHeight;
    // On a logarithmic axis bands end at its lower end.
    this.floor = logY ? 10 ** y[0] : -Infinity;
  }

  // Contains all means, and bands as far as they do not flatten the means.
  fitY(series, along, up, [left, right]) {
    let [low, high, bandLow, bandHigh] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y, low: lower, high: upper, within } of series) {
      const [least, most] = within || [-Infinity, Infinity];
      for (let i = 0; i < x.length; i++) {
        if (along(x[i]) < left || along(x[i]) > right || !Number.isFinite(up(y[i]))) continue;
        low = Math.min(low, up(y[i]));
        high = Math.max(high, up(y[i]));
        if (!lower || !Number.isFinite(lower[i])) continue;
        bandLow = Math.min(bandLow, up(Math.max(lower[i], least)));
        bandHigh = Math.max(bandHigh, up(Math.min(upper[i], most)));
      }
    }
    if (low > high) return [0, 1];
    const span = high - low || 0.1 * Math.abs(high) || 1;
    const bottom = Math.max(low - 0.6 * span, Math.min(low, bandLow));
    const top = Math.min(high + 0.6 * span, Math.max(high, bandHigh));
    const margin = 0.05 * (top - bottom) || 0.5 * span;
    return [bottom - margin, top + margin];
  }

  drawAxes({ xLabel, xTicks, log, logY }) {
    const { root, domain } = this;
    const bottom = MARGIN.top + this.innerHeight;
    const right = this.left + this.innerWidth;
    const axes = svg("g", { class: "axes" }, root);
    for (const [value, text] of logY ? logTicks(...domain.y) : niceTicks(...domain.y, this.innerHeight / 35)) {
      const y = this.py(value);
      svg("line", { class: "rule", x1: this.left, x2: right, y1: y, y2: y }, axes);
      svg("text", { class: "tick-y", x: this.left - 7, y: y + 3.5 }, axes, text);
    }
    for (const [value, text] of xTicks || (log ? logTicks(...domain.x) : niceTicks(...domain.x, Math.max(2, Math.min(8, this.innerWidth / 70))))) {
      const x = this.px(value);
      if (x < this.left - 1 || x > right + 1) continue;
      svg("line", { class: "tick", x1: x, x2: x, y1: bottom, y2: bottom + 4 }, axes);
      text.split("\n").forEach((line, i) => svg("text", { class: "tick-x", x, y: bottom + 16 + 13 * i }, axes, line));
    }
    svg("line", { class: "axis", x1: this.left, x2: right, y1: bottom, y2: bottom }, axes);
    svg("text", { class: "label", x: this.left + this.innerWidth / 2, y: this.height - 4 }, axes, xLabel);
  }

  path(xs, ys) {
    let text = "";
    let pen = "M";
    for (let i = 0; i < xs.length; i++) {
      const [x, y] = [this.px(xs[i]), this.py(ys[i])];
      if (!Number.isFinite(x + y)) { pen = "M"; continue; }
      text += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  // Bands of shares stay between 0 and 1.
  drawBand(plot, { mark, x, colour, low, high, within }) {
    if (!low || mark === "points") return;
    const [least, most] = within || [-Infinity, Infinity];
    const known = [...x.keys()].filter((i) => Number.isFinite(low[i]) && high[i] > this.floor);
    const end = (ends, places) => this.path(places.map((i) => x[i]), places.map((i) => Math.min(Math.max(ends[i], least, this.floor), most)));
    const outline = `${end(high, known)}${end(low, known.reverse()).replace("M", "L")}Z`;
    svg("path", { class: "band", d: known.length ? outline : "" }, plot).style.setProperty("--own", colour);
  }

  drawSeries(plot, { label, colour, variant, mark, x, y, low, high }) {
    const group = svg("g", { class: "series", "data-label": label }, plot);
    group.style.setProperty("--own", colour);
    const isLine = !["points", "banded"].includes(mark);
    const known = (i) => Number.isFinite(this.px(x[i]) + this.py(y[i]));
    for (let i = 0; i < x.length; i++) {
      // A line has points for isolated values alone, which it does not show.
      if (!known(i) || (isLine && (known(i - 1) || known(i + 1)))) continue;
      const at = this.px(x[i]);
      svg("circle", { class: "point", cx: at, cy: this.py(y[i]), r: 3.5 }, group);
      if (mark === "points" && low && Number.isFinite(low[i])) {
        svg("line", { class: "fit", x1: at, x2: at, y1: this.py(low[i]), y2: this.py(high[i]) }, group);
      }
    }
    if (isLine) svg("path", { class: mark, d: this.path(x, y), "stroke-dasharray": DASHES[variant] || "" }, group);
  }

  // A drag zooms x; y then fits the visible values.
  listen() {
    const { root } = this;
    let from = null;
    root.addEventListener("pointermove", (event) => {
      const at = this.place(event);
      if (from === null) {
        this.at = at;
        return this.hover(at);
      }
      for (const [name, value] of Object.entries({ x: Math.min(from, at.x), width: Math.abs(from - at.x), visibility: "visible" })) {
        this.frame.setAttribute(name, value);
      }
    });
    root.addEventListener("pointerleave", () => this.leave());
    root.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      from = this.place(event).x;
      root.setPointerCapture(event.pointerId);
      this.leave();
    });
    root.addEventListener("pointerup", (event) => {
      const to = this.place(event).x;
      this.frame.setAttribute("visibility", "hidden");
      if (from !== null && Math.abs(from - to) > 6) {
        const { x: [low, high] } = this.domain;
        this.zoom = [from, to].sort((a, b) => a - b).map((v) => low + ((v - this.left) / this.innerWidth) * (high - low));
        this.draw();
      }
      from = null;
    });
    root.addEventListener("dblclick", () => this.reset());
  }

  place(event) {
    const box = this.root.getBoundingClientRect();
    return {
      x: Math.min(Math.max(event.clientX - box.left, this.left), this.left + this.innerWidth),
      y: event.clientY - box.top,
    };
  }

  reset() {
    this.zoom = null;
    this.draw();
  }

  // Reads out all series near the nearest x; among points those at the nearest point.
  hover(at) {
    const points = this.shown.series.filter(({ mark }) => mark !== "run" && mark !== "fit").flatMap((series) =>
      Array.from(series.y, (y, i) => {
        const x = series.x[i];
        const fall = series.mark === "points" ? this.py(y) - at.y : 0;
        return { series, i, x, y, away: Math.hypot(this.px(x) - at.x, fall), off: Math.abs(this.py(y) - at.y) };
      }).filter(({ away, off }) => Number.isFinite(away + off)));
    if (!points.length) return;
    const nearest = points.reduce((a, b) => (b.away < a.away ? b : a));
    if (nearest.series.mark === "points" && nearest.away > 40) return this.leave();
    // Rows spend differently, so that their steps lie next to each other.
    const reach = nearest.series.mark === "points" ? 0 : REACH;
    const best = new Map();
    for (const point of points) if (!(best.get(point.series)?.away <= point.away)) best.set(point.series, point);
    const alike = [...best.values()].filter(({ x }) => Math.abs(this.px(x) - this.px(nearest.x)) <= reach).sort((a, b) => a.off - b.off);
    const listed = alike.slice(0, IN_READOUT).sort((a, b) => b.y - a.y);
    const x = this.px(nearest.x);
    for (const [name, value] of Object.entries({ x1: x, x2: x, visibility: "visible" })) this.cursor.setAttribute(name, value);
    this.readout.replaceChildren();
    const more = alike.length - listed.length;
    html("div", { class: "at" }, this.readout, `${this.shown.xLabel} ${short(nearest.x)}${more ? `, and ${more} more rows` : ""}`);
    for (const { series, i, y } of listed) {
      const line = html("div", {}, this.readout);
      html("span", { class: "swatch" }, line).style.setProperty("--own", series.colour);
      html("span", { class: "what" }, line, series.names ? `${series.label}, ${series.names[i]}` : series.label);
      html("b", {}, line, shortInterval(y, series.high ? series.high[i] - y : NaN));
    }
    this.readout.hidden = false;
    const left = x + 14 + this.readout.offsetWidth > this.width ? x - 14 - this.readout.offsetWidth : x + 14;
    this.readout.style.left = `${Math.max(left, 0)}px`;
  }

  leave() {
    this.at = null;
    this.readout.hidden = true;
    this.cursor.setAttribute("visibility", "hidden");
  }
}
Chart.count = 0;
