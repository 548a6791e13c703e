// The table of all runs: sorted, filtered, updated in place.
import { bytes, duration, percent, whole } from "./format.js";
import { by, h, setText, stateOf, track } from "./parts.js";
import { now, pick, runs, state } from "./state.js";

export const left = (run) => run.status !== "running" || !run.pace ? null
  : Math.max(0, run.pace * (run.rounds - run.done) - Math.min(run.pace, now() - run.moved));
export const nameOf = (run) => [run.label, run.column].filter(Boolean).join(", ");
const RANK = { running: 0, stalled: 0, failed: 1, diverged: 1, broken: 2, stopped: 3, waiting: 4, finished: 5 };

const COLUMNS = [
  { name: "run", title: "Run", value: (run) => nameOf(run).toLowerCase() + (run.seed ?? "") },
  { name: "data", title: "Data", value: (run) => run.data, text: (run) => run.data },
  { name: "seed", title: "Seed", right: true, value: (run) => run.seed ?? -1, text: (run) => run.seed ?? "–" },
  { name: "state", title: "State", value: (run) => RANK[run.status] * 1e12 - run.moved },
  { name: "rounds", title: "Rounds", value: (run) => run.rounds ? run.done / run.rounds : 0 },
  { name: "accuracy", title: "Accuracy", right: true, down: true, value: (run) => run.accuracy ?? -1, text: (run) => percent(run.accuracy) },
  { name: "best", title: "Best", right: true, down: true, value: (run) => run.best ?? -1, text: (run) => percent(run.best) },
  { name: "bytes", title: "Bytes", right: true, down: true, value: (run) => run.bytes, text: (run) => run.length ? bytes(run.bytes) : "–" },
  { name: "time", title: "Time", right: true, down: true, value: (run) => run.seconds, text: (run) => run.length ? duration(run.seconds) : "–" },
  { name: "left", title: "Left", right: true, value: (run) => left(run) ?? Infinity, text: (run) => left(run) == null ? "" : duration(left(run)) },
];
const sorting = { by: "state", down: false };
const rows = new Map();

export function makeTable(changed) {
  by("heads").append(h("th", { scope: "col", class: "pick" }, h("span", { class: "unseen" }, "In the charts")), ...COLUMNS.map((column) => h("th", { scope: "col", class: column.right ? "r" : null, "data-name": column.name },
    h("button", { type: "button", onclick: () => { sorting.down = sorting.by === column.name ? !sorting.down : !!column.down; sorting.by = column.name; changed(); } }, column.title, h("span", { class: "arrow", "aria-hidden": "true" })))));
  by("state").append(...["all states", "running", "waiting", "finished", "stopped", "failed"].map((name) => h("option", { value: name === "all states" ? "" : name }, name)));
  by("filter").addEventListener("input", changed);
  by("state").addEventListener("change", changed);
}

function matches(run, words, status) {
  if (status === "failed" ? !["failed", "diverged", "broken"].includes(run.status) && !run.stalled : status && run.status !== status) return false;
  const text = [run.label, run.column, run.method, run.data, run.name, run.status, run.stalled ? "stalled" : "", `seed ${run.seed}`].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

export function shownRuns() {
  const words = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean), status = by("state").value;
  const column = COLUMNS.find((each) => each.name === sorting.by), sign = sorting.down ? -1 : 1;
  const keyed = runs().filter((run) => matches(run, words, status)).map((run) => [column.value(run), nameOf(run), run.seed ?? 0, run]);
  keyed.sort((a, b) => (a[0] < b[0] ? -sign : a[0] > b[0] ? sign : 0) || (a[1] < b[1] ? -1 : a[1] > b[1] ? 1 : a[2] - b[2]));
  return keyed.map((each) => each[3]);
}

function makeRow(run, changed) {
  const box = h("input", { type: "checkbox", onchange: () => { pick(run.id, box.checked); box.checked = state.picked.has(run.id); changed(); } });
  const link = h("a", { href: `#run=${run.id}` }), cells = {};
  const row = h("tr", { "data-run": run.id }, h("td", { class: "pick" }, box), h("th", { scope: "row" }, link), ...COLUMNS.slice(1).map((column) =>
    (cells[column.name] = h("td", { class: [column.right && "r", column.name === "rounds" && "mini", column.name === "best" && "lead"].filter(Boolean).join(" ") || null, "data-head": column.title }))));
  return { row, box, link, cells, seen: null };
}

function update(made, run, best) {
  made.box.checked = state.picked.has(run.id);
  made.row.classList.toggle("best", run.best != null && run.best === best);
  setText(made.cells.left, String(COLUMNS.at(-1).text(run)));
  if (made.seen === run) return; // a change makes another object
  made.seen = run;
  const name = nameOf(run);
  setText(made.link, name);
  made.box.setAttribute("aria-label", `${name} seed ${run.seed} in the charts`);
  made.box.disabled = !run.length;
  for (const column of COLUMNS) if (column.text && column.name !== "left") setText(made.cells[column.name], String(column.text(run)));
  made.cells.state.replaceChildren(stateOf(run));
  made.cells.rounds.replaceChildren(track(run.rounds ? run.done / run.rounds : 0, `rounds of ${name}`, run.status === "finished"), h("span", { class: "small" }, run.rounds ? `${whole(run.done)} of ${whole(run.rounds)}` : "–"));
}

export function drawTable(changed) {
  const shown = shownRuns(), body = by("rows");
  const best = Math.max(...runs().map((run) => run.best ?? -1));
  for (const id of rows.keys()) if (!state.runs.has(id)) { rows.get(id).row.remove(); rows.delete(id); }
  const wanted = new Set();
  let place = body.firstChild;
  for (const run of shown) {
    if (!rows.has(run.id)) rows.set(run.id, makeRow(run, changed));
    const made = rows.get(run.id);
    wanted.add(made.row);
    update(made, run, best);
    if (made.row === place) place = place.nextSibling;
    else body.insertBefore(made.row, place);
  }
  for (const row of [...body.children]) if (!wanted.has(row)) row.remove();
  for (const head of by("heads").querySelectorAll("[data-name]")) {
    const sorted = head.dataset.name === sorting.by;
    if (sorted) head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
    setText(head.querySelector(".arrow"), sorted ? (sorting.down ? "↓" : "↑") : "");
  }
  setText(by("count"), shown.length === state.runs.size ? "" : `${shown.length} of ${state.runs.size} runs`);
}
