"use strict";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 56, right: 14, top: 10, bottom: 36 };
const HEIGHT = 270;
const IN_READOUT = 9;
// The dashes of `advsweep plot`.
const DASHES = ["", "7 3", "2 2.5", "8 3 2 3"];

function svg(tag, attributes, parent) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  if (parent) parent.append(node);
  return node;
}

function html(tag, attributes, parent, text) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  // Not as markup: names and configs may contain anything.
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

/*
 * A chart of lines over an x that all series share, or of points. It calls `content()` for what to
 * draw:
 *   {x, xLabel, name, log, series: [{label, colour, variant, y, low, high, runs, law}]}
 *   {xLabel, name, scatter: true, series: [{label, colour, x, y, names}]}
 * `low` is null without a band, `runs` has the y of each run, `law` is a function of x, and `names`
 * has the label of each point.
 */
class Chart {
  constructor(host, content) {
    this.host = host;
    this.content = content;
    this.zoom = null;
    this.focused = false;
    this.root = svg("svg", { class: "chart", tabindex: "0", role: "img" }, host);
    this.readout = html("div", { class: "readout", hidden: "" }, host);
    this.clip = `clip-${Chart.count++}`;
    this.listen();
    new ResizeObserver(() => {
      if (host.clientWidth !== this.width) this.draw();
    }).observe(host);
  }

  draw() {
    const shown = this.content();
    this.shown = shown;
    this.width = this.host.clientWidth;
    const { root } = this;
    root.replaceChildren();
    root.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    root.setAttribute("height", HEIGHT);
    root.setAttribute("aria-label", `${shown.name} over ${shown.xLabel}, ${shown.series.length} rows`);
    this.setDomain(shown);
    this.drawAxes(shown);
    const clip = svg("clipPath", { id: this.clip }, svg("defs", {}, root));
    svg("rect", { x: MARGIN.left, y: MARGIN.top, width: this.innerWidth, height: this.innerHeight }, clip);
    const plot = svg("g", { "clip-path": `url(#${this.clip})` }, root);
    for (const series of shown.series) this.drawBand(plot, shown, series);
    for (const series of shown.series) this.drawSeries(plot, shown, series);
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: MARGIN.top + this.innerHeight, visibility: "hidden" }, root);
    this.frame = svg("rect", { class: "frame", visibility: "hidden" }, root);
    if (!shown.series.length) {
      svg("text", { x: this.width / 2, y: HEIGHT / 2, class: "empty" }, root).textContent = "no row that is shown has it";
    }
    root.dataset.domain = JSON.stringify(this.domain);
    root.dataset.zoomed = String(this.zoom !== null);
    this.host.classList.toggle("zoomed", this.zoom !== null);
  }

  get innerWidth() { return Math.max(this.width - MARGIN.left - MARGIN.right, 10); }
  get innerHeight() { return HEIGHT - MARGIN.top - MARGIN.bottom; }

  setDomain(shown) {
    const along = shown.log ? Math.log2 : (v) => v;
    const all = shown.scatter ? shown.series.flatMap((series) => series.x) : shown.x;
    let [left, right] = all.length ? extent(all.map(along)) : [0, 1];
    if (right === left) [left, right] = [left - 0.5, right + 0.5];
    // Without a margin, points at the edge would be cut in half.
    if (shown.log || shown.scatter) [left, right] = [left - 0.02 * (right - left), right + 0.02 * (right - left)];
    this.full = [left, right];
    const x = this.zoom ? this.zoom.x : this.full;
    const y = (this.zoom && this.zoom.y) || this.fitY(shown, along, x);
    this.domain = { x, y };
    this.px = (v) => MARGIN.left + ((along(v) - x[0]) / (x[1] - x[0])) * this.innerWidth;
    this.py = (v) => MARGIN.top + (1 - (v - y[0]) / (y[1] - y[0])) * this.innerHeight;
  }

  // Contains all means, and bands as far as they do not flatten the means.
  fitY(shown, along, [left, right]) {
    let [low, high, bandLow, bandHigh] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y, low: lower, high: upper, within, runs } of shown.series) {
      const [least, most] = within || [-Infinity, Infinity];
      const xs = (x || shown.x).map(along);
      for (let i = 0; i < xs.length; i++) {
        if (xs[i] < left || xs[i] > right) continue;
        for (const own of [y, ...runs]) {
          if (own[i] < low) low = own[i];
          if (own[i] > high) high = own[i];
        }
        if (lower && lower[i] < bandLow) bandLow = Math.max(lower[i], least);
        if (lower && upper[i] > bandHigh) bandHigh = Math.min(upper[i], most);
      }
    }
    if (low > high) return [0, 1];
    const span = high - low || 0.1 * Math.abs(high) || 1;
    const bottom = Math.max(low - 0.6 * span, Math.min(low, bandLow));
    const top = Math.min(high + 0.6 * span, Math.max(high, bandHigh));
    const margin = 0.05 * (top - bottom) || 0.5 * span;
    return [bottom - margin, top + margin];
  }

  drawAxes(shown) {
    const { root, domain } = this;
    const bottom = MARGIN.top + this.innerHeight;
    const right = MARGIN.left + this.innerWidth;
    const axes = svg("g", { class: "axes" }, root);
    for (const [value, text] of niceTicks(...domain.y, 6)) {
      const y = this.py(value);
      svg("line", { class: "rule", x1: MARGIN.left, x2: right, y1: y, y2: y }, axes);
      svg("text", { class: "tick-y", x: MARGIN.left - 7, y: y + 3.5 }, axes).textContent = text;
    }
    const ticks = shown.log
      ? shown.x.filter((v) => Math.log2(v) >= domain.x[0] && Math.log2(v) <= domain.x[1]).map((v) => [v, String(v)])
      : niceTicks(...domain.x, Math.max(2, Math.min(8, this.innerWidth / 70)));
    for (const [value, text] of ticks) {
      const x = this.px(value);
      svg("line", { class: "tick", x1: x, x2: x, y1: bottom, y2: bottom + 4 }, axes);
      svg("text", { class: "tick-x", x, y: bottom + 16 }, axes).textContent = text;
    }
    svg("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }, axes);
    svg("text", { class: "label", x: MARGIN.left + this.innerWidth / 2, y: HEIGHT - 4 }, axes).textContent = shown.xLabel;
  }

  path(xs, ys) {
    let text = "";
    let pen = "M";
    for (let i = 0; i < xs.length; i++) {
      if (!Number.isFinite(ys[i])) { pen = "M"; continue; }
      text += `${pen}${this.px(xs[i]).toFixed(1)} ${this.py(ys[i]).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  // Bands of shares stay between 0 and 1.
  drawBand(plot, { x }, { colour, low: lower, high: upper, within }) {
    if (!lower) return;
    const [least, most] = within || [-Infinity, Infinity];
    const [low, high] = [lower, upper].map((end) => end.map((v) => Math.min(Math.max(v, least), most)));
    let start = 0;
    while (start < x.length) {
      while (start < x.length && !Number.isFinite(low[start])) start++;
      let end = start;
      while (end < x.length && Number.isFinite(low[end])) end++;
      if (end > start) {
        const back = this.path(x.slice(start, end).reverse(), Array.from(low.slice(start, end)).reverse());
        const outline = `${this.path(x.slice(start, end), high.slice(start, end))}${back.replace("M", "L")}Z`;
        svg("path", { class: "band", d: outline }, plot).style.setProperty("--own", colour);
      }
      start = end;
    }
  }

  drawSeries(plot, { x: shared, log, scatter }, series) {
    const x = series.x || shared;
    const group = svg("g", { class: "series", "data-label": series.label }, plot);
    group.style.setProperty("--own", series.colour);
    const dash = DASHES[series.variant] || "";
    for (const run of series.runs) svg("path", { class: "run", d: this.path(x, run) }, group);
    const known = (i) => Number.isFinite(series.y[i]);
    x.forEach((value, i) => {
      // A curve has points for isolated values alone, which its line does not show.
      if (!known(i) || (!log && !scatter && (known(i - 1) || known(i + 1)))) return;
      svg("circle", { class: "point", cx: this.px(value), cy: this.py(series.y[i]), r: 3.5 }, group);
    });
    if (!log && !scatter) {
      svg("path", { class: "mean", d: this.path(x, series.y), "stroke-dasharray": dash }, group);
    }
    if (!series.law) return;
    const [first, last] = [Math.log2(x[0]), Math.log2(x[x.length - 1])];
    const dense = Array.from({ length: 120 }, (_, i) => 2 ** (first + ((last - first) * i) / 119));
    svg("path", { class: "law", d: this.path(dense, dense.map(series.law)), "stroke-dasharray": dash }, group);
  }

  listen() {
    const { root } = this;
    let from = null;
    root.addEventListener("pointermove", (event) => {
      const at = this.place(event);
      if (from) this.showFrame(from, at);
      else this.hover(at);
    });
    root.addEventListener("pointerleave", () => this.leave());
    root.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      from = this.place(event);
      root.setPointerCapture(event.pointerId);
      this.leave();
    });
    root.addEventListener("pointerup", (event) => {
      const start = from;
      from = null;
      this.frame.setAttribute("visibility", "hidden");
      if (start) this.zoomTo(start, this.place(event));
    });
    root.addEventListener("pointercancel", () => { from = null; this.draw(); });
    root.addEventListener("dblclick", () => this.reset());
    root.addEventListener("wheel", (event) => {
      // Scrolling the page must not zoom every figure that it passes.
      if (document.activeElement !== root && !event.ctrlKey) return;
      event.preventDefault();
      this.scale(event.deltaY > 0 ? 1.25 : 0.8, this.place(event).share);
    }, { passive: false });
    root.addEventListener("keydown", (event) => {
      const acts = {
        "+": () => this.scale(0.8, 0.5), "=": () => this.scale(0.8, 0.5), "-": () => this.scale(1.25, 0.5),
        ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1),
        0: () => this.reset(), Escape: () => this.reset(),
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  place(event) {
    const box = this.root.getBoundingClientRect();
    const x = Math.min(Math.max(event.clientX - box.left, MARGIN.left), MARGIN.left + this.innerWidth);
    const y = Math.min(Math.max(event.clientY - box.top, MARGIN.top), MARGIN.top + this.innerHeight);
    return { x, y, share: (x - MARGIN.left) / this.innerWidth, rise: 1 - (y - MARGIN.top) / this.innerHeight };
  }

  showFrame(a, b) {
    const flat = Math.abs(a.y - b.y) < 12;
    const frame = {
      x: Math.min(a.x, b.x), width: Math.abs(a.x - b.x),
      y: flat ? MARGIN.top : Math.min(a.y, b.y), height: flat ? this.innerHeight : Math.abs(a.y - b.y),
      visibility: "visible",
    };
    for (const [name, value] of Object.entries(frame)) this.frame.setAttribute(name, value);
  }

  // A horizontal drag zooms x alone; y then fits the visible values.
  zoomTo(a, b) {
    if (Math.abs(a.x - b.x) < 6) return;
    const between = ([low, high], shares) => shares.sort((p, q) => p - q).map((s) => low + s * (high - low));
    const y = Math.abs(a.y - b.y) < 12 ? null : between(this.domain.y, [a.rise, b.rise]);
    this.setZoom(between(this.domain.x, [a.share, b.share]), y);
  }

  scale(factor, share) {
    const [low, high] = this.domain.x;
    const at = low + share * (high - low);
    this.setZoom([at - (at - low) * factor, at + (high - at) * factor], null);
  }

  pan(share) {
    if (!this.zoom) return;
    const [low, high] = this.zoom.x;
    const by = share * (high - low);
    const room = Math.min(Math.max(by, this.full[0] - low), this.full[1] - high);
    this.setZoom([low + room, high + room], this.zoom.y);
  }

  setZoom(x, y) {
    const kept = [Math.max(x[0], this.full[0]), Math.min(x[1], this.full[1])];
    const whole = kept[0] <= this.full[0] && kept[1] >= this.full[1] && !y;
    if (kept[1] - kept[0] < (this.full[1] - this.full[0]) / 1e4) return;
    this.zoom = whole ? null : { x: kept, y };
    this.draw();
  }

  reset() {
    this.zoom = null;
    this.draw();
  }

  hover(at) {
    const { shown } = this;
    if (!shown.series.length) return;
    if (shown.scatter) return this.hoverPoint(at);
    let nearest = 0;
    shown.x.forEach((value, i) => {
      if (Math.abs(this.px(value) - at.x) < Math.abs(this.px(shown.x[nearest]) - at.x)) nearest = i;
    });
    const x = this.px(shown.x[nearest]);
    if (x < MARGIN.left - 1 || x > MARGIN.left + this.innerWidth + 1) return this.leave();
    for (const [name, value] of Object.entries({ x1: x, x2: x, visibility: "visible" })) this.cursor.setAttribute(name, value);
    const known = shown.series.filter((s) => Number.isFinite(s.y[nearest]));
    const away = (s) => Math.abs(this.py(s.y[nearest]) - at.y);
    const listed = [...known].sort((a, b) => away(a) - away(b)).slice(0, IN_READOUT);
    listed.sort((a, b) => b.y[nearest] - a.y[nearest]);
    const lines = listed.map((series) => {
      const half = series.high ? series.high[nearest] - series.y[nearest] : NaN;
      return [series.colour, series.label, shortInterval(series.y[nearest], half)];
    });
    const more = known.length - listed.length;
    this.readOut(x, `${shown.xLabel} ${short(shown.x[nearest])}${more ? `, and ${more} more rows` : ""}`, lines);
  }

  hoverPoint(at) {
    const points = this.shown.series.flatMap((series) =>
      series.x.map((x, i) => ({ series, i, away: Math.hypot(this.px(x) - at.x, this.py(series.y[i]) - at.y) })));
    points.sort((a, b) => a.away - b.away);
    if (!points.length || points[0].away > 40) return this.leave();
    const { series, i } = points[0];
    const values = `${short(series.y[i])} at ${short(series.x[i])}`;
    this.readOut(this.px(series.x[i]), series.names[i], [[series.colour, series.label, values]]);
  }

  readOut(x, title, lines) {
    this.readout.replaceChildren();
    html("div", { class: "at" }, this.readout, title);
    for (const [colour, what, value] of lines) {
      const line = html("div", {}, this.readout);
      html("span", { class: "swatch" }, line).style.setProperty("--own", colour);
      html("span", { class: "what" }, line, what);
      html("b", {}, line, value);
    }
    this.readout.hidden = false;
    const left = x + 14 + this.readout.offsetWidth > this.width ? x - 14 - this.readout.offsetWidth : x + 14;
    this.readout.style.left = `${Math.max(left, 0)}px`;
  }

  leave() {
    this.readout.hidden = true;
    this.cursor.setAttribute("visibility", "hidden");
  }
}
Chart.count = 0;
