"use strict";

// `advsweep serve` answers `state`: how the runs stand, and which version of the page is the newest.
const POLL = 2000; // milliseconds
const PATIENCE = 30000;
// Parts of the page that are replaced as a whole.
const REPLACED = ["sections", "facts", "findings", "race", "report", "provenance"];
const VERBS = {
  stop: { question: "Stop", button: "stop", effect: "A checkpoint is written first; retry goes on from it." },
  retry: { question: "Restart", button: "retry", effect: "Training goes on from the last checkpoint, in a process of its own." },
};
const NEWS = 8;

const byId = (id) => document.getElementById(id);

function runNames(ids) {
  return ids.length === 1 ? `run ${ids[0]}` : `${ids.length} runs`;
}

function addNews(text) {
  const news = byId("news");
  news.prepend(html("li", {}, undefined, `${new Date().toLocaleTimeString()}: ${text}`));
  while (news.children.length > NEWS) news.lastChild.remove();
}

// Resolves to whether the user agrees.
function confirmed(verb, ids) {
  const dialog = byId("confirm");
  const { question, button, effect } = VERBS[verb];
  byId("question").textContent = `${question} ${runNames(ids)}? ${effect}`;
  byId("yes").textContent = `${button} ${runNames(ids)}`;
  dialog.showModal();
  return new Promise((resolve) => {
    byId("yes").onclick = () => dialog.close("yes");
    byId("no").onclick = () => dialog.close("");
    dialog.onclose = () => {
      resolve(dialog.returnValue === "yes");
      dialog.returnValue = "";
    };
  });
}

// The heading that a table is sorted by, with its direction; null if it is in its own order.
function sortingOf(table) {
  const header = table.querySelector("th[aria-sort='ascending'], th[aria-sort='descending']");
  return header && { text: header.textContent, falling: header.getAttribute("aria-sort") === "descending" };
}

function sortAgain(table, sorting) {
  if (!sorting) return;
  const header = [...table.querySelectorAll("thead th[aria-sort]")].find((own) => own.textContent === sorting.text);
  if (header) sortTable(table, header, sorting.falling);
}

function replacePart(id, fresh) {
  const old = byId(id);
  const sortings = [...old.querySelectorAll("table")].map(sortingOf);
  old.replaceWith(fresh);
  [...fresh.querySelectorAll("table")].forEach((table, i) => sortAgain(table, sortings[i]));
}

// Buttons of runs are made anew: returns what gives the focus back to the one that has it.
function rememberFocus() {
  const runs = byId("runs");
  const nameOf = (button) => button.getAttribute("aria-label") ?? button.textContent;
  const active = document.activeElement;
  if (!runs.contains(active) || active.tagName !== "BUTTON") return () => {};
  const name = nameOf(active);
  return () => [...runs.querySelectorAll("button")].find((button) => nameOf(button) === name)?.focus();
}

// Rows of runs stay where they are, with their details, as only their cells change.
function renewRuns(fresh) {
  const table = document.querySelector("#runs table");
  const sorting = sortingOf(table);
  const rows = new Map(runRows().map((row) => [runOf(row), row]));
  const renewed = [...fresh.querySelectorAll("tbody tr")];
  table.tHead.replaceWith(fresh.querySelector("thead"));
  for (const row of renewed) {
    const old = rows.get(runOf(row));
    rows.delete(runOf(row));
    if (!old) {
      table.tBodies[0].append(row);
      continue;
    }
    old.replaceChildren(...row.cells);
    if (!old.details) continue;
    // Closed and opened again, with the new data.
    toggleDetails(old);
    toggleDetails(old);
  }
  for (const row of rows.values()) {
    row.details?.remove();
    row.remove();
  }
  sortAgain(table, sorting);
}

function startLive(renewals) {
  const query = location.search;
  const written = new Map(REPLACED.map((id) => [id, byId(id).outerHTML]));
  const title = document.title;
  let version = document.documentElement.dataset.version;
  let etag = null;
  let state = null;
  let heard = Date.now();
  let waiting = null;

  async function renew() {
    const answer = await fetch(`page${query}`, { cache: "no-store" });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    DATA = JSON.parse(fresh.getElementById("data").textContent);
    version = fresh.documentElement.dataset.version;
    for (const id of REPLACED) {
      const part = fresh.getElementById(id);
      const text = part.outerHTML;
      if (text === written.get(id)) continue;
      written.set(id, text);
      replacePart(id, document.adoptNode(part));
      if (id === "findings") startForests();
    }
    const focusAgain = rememberFocus();
    renewRuns(document.adoptNode(fresh.querySelector("#runs table")));
    for (const again of renewals) again();
    showRuns();
    focusAgain();
  }

  async function act(verb, ids) {
    if (!ids.length || !(await confirmed(verb, ids))) return;
    try {
      const answer = await fetch(verb, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ sweep: new URLSearchParams(query).get("sweep"), runs: ids }),
      });
      addNews((await answer.json()).message);
    } catch {
      addNews(`${verb} ${runNames(ids)}: advsweep serve does not answer`);
    }
    ask();
  }

  function addButton(host, run, verb, text) {
    const button = html("button", { type: "button", class: "act", "aria-label": `${text} run ${run}` }, host, text);
    button.addEventListener("click", () => act(verb, [Number(run)]));
  }

  // The state of each run in its row; a click stops or restarts it.
  function showRuns() {
    if (!state) return;
    const names = [...document.querySelectorAll("#runs thead th")].map((header) => header.textContent);
    const [status, steps] = [names.indexOf("status"), names.indexOf("steps")];
    for (const row of runRows()) {
      const run = runOf(row);
      const own = state.rows[run];
      if (!own) continue;
      row.cells[0].dataset.value = run;
      row.cells[status].textContent = own.status;
      row.cells[steps].textContent = `${own.step}/${own.steps}`;
      row.cells[steps].dataset.value = own.step;
      const wanted = JSON.stringify(own.actions);
      if (row.dataset.actions === wanted && row.querySelector(".acts")) continue;
      row.dataset.actions = wanted;
      row.querySelector(".acts")?.remove();
      const acts = html("span", { class: "acts" }, row.cells[0]);
      for (const [verb, text] of Object.entries(own.actions)) addButton(acts, run, verb, text);
    }
  }

  function able(verb) {
    return Object.entries(state.rows).filter(([, own]) => own.actions[verb]).map(([id]) => Number(id));
  }

  function showState() {
    byId("standing").textContent = state.text;
    byId("progress").value = state.share;
    document.title = `${state.done}/${state.runs} ${title}`;
    for (const verb of ["stop", "retry"]) {
      const ids = able(verb);
      const button = byId(`${verb}-all`);
      button.hidden = ids.length < 2;
      button.textContent = `${verb} ${runNames(ids)}`;
      button.onclick = () => act(verb, able(verb));
    }
    const failures = byId("failures");
    failures.replaceChildren();
    for (const line of [...state.restarts, ...state.notes]) html("li", {}, failures, line);
    showRuns();
  }

  function showConnection(problem) {
    const text = problem ? `${problem}; shown is what was known at ${new Date(heard).toLocaleTimeString()}` : "";
    const host = byId("connection");
    if (host.textContent !== text) host.textContent = text;
    document.documentElement.classList.toggle("offline", Boolean(problem));
  }

  async function poll() {
    const answer = await fetch(`state${query}`, { cache: "no-store", headers: etag ? { "If-None-Match": etag } : {} });
    if (answer.status !== 304) {
      const said = await answer.json();
      if (!answer.ok) return said.message;
      etag = answer.headers.get("ETag");
      state = said;
      showState();
    }
    heard = Date.now();
    if (state.page && state.page !== version) await renew();
    return "";
  }

  let failed = 0;
  async function ask() {
    clearTimeout(waiting);
    let problem;
    try {
      problem = await poll();
    } catch {
      problem = "advsweep serve does not answer";
    }
    showConnection(problem);
    failed = problem ? failed + 1 : 0;
    clearTimeout(waiting);
    // Nobody looks at a hidden page.
    if (!document.hidden) waiting = setTimeout(ask, Math.min(POLL * 2 ** failed, PATIENCE));
  }

  document.addEventListener("visibilitychange", () => document.hidden || ask());
  ask();
}
