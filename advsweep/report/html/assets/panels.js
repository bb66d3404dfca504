"use strict";

const FORESTS = 4;

function panel(host) {
  const figure = html("figure", { class: "panel" }, host);
  const head = html("figcaption", {}, figure);
  return { head, host: html("div", { class: "host" }, figure) };
}

// What was chosen in a menu, by its label: a renewed page has it again.
const CHOSEN = new Map();

function addMenu(host, label, names, value) {
  const menu = html("select", { "aria-label": label }, host);
  for (const name of names) html("option", { value: name }, menu, name);
  menu.value = names.includes(CHOSEN.get(label)) ? CHOSEN.get(label) : value;
  menu.addEventListener("change", () => CHOSEN.set(label, menu.value));
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
