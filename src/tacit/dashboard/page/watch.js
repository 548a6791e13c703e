// The page: draws what the state knows, whenever it has changed.
import { Chart, sample } from "./chart.js";
import { AXES, byImportance, whole } from "./format.js";
import { drawDetail, opened } from "./detail.js";
import { drawAttention, drawGroups, drawPanels } from "./panels.js";
import { by, fill, h, setText } from "./parts.js";
import { follow, pickForPerson, runs, state } from "./state.js";
import { drawTable, makeTable, nameOf } from "./table.js";

const FEW = 9;
const view = { axis: "rounds", all: false };
const places = { charts: new Map(), "detail-charts": new Map() };

function chosenRuns(ids) {
  const found = [...ids].map((id) => state.runs.get(id)).filter((run) => run && state.series.has(run.id));
  const groups = new Set(found.map((run) => run.group));
  const title = new Map(state.groups.map((group) => [group.id, group.title]));
  const named = found.map((run) => ({ id: run.id, rows: state.series.get(run.id), label: nameOf(run) + (groups.size > 1 ? ` (${title.get(run.group)})` : "") }));
  const labels = [...new Set(named.map((run) => run.label))].sort();
  return named.map((run) => ({ ...run, index: labels.indexOf(run.label) }));
}

function drawCharts(place, chosen, few) {
  const names = byImportance(new Set(chosen.flatMap((run) => Object.keys(run.rows.values)))).filter((name) =>
    name !== "skipped_clients" || chosen.some((run) => run.rows.values[name]?.some((value) => value > 0)));
  const shown = few ? names.slice(0, FEW) : names, area = by(place), charts = places[place];
  for (const [name, chart] of charts) if (!shown.includes(name) || chart.figure.parentNode !== area) { chart.figure.remove(); charts.delete(name); }
  shown.forEach((name, index) => {
    if (!charts.has(name)) charts.set(name, new Chart(name));
    const chart = charts.get(name);
    if (area.children[index] !== chart.figure) area.insertBefore(chart.figure, area.children[index] ?? null);
    if (index === 0) chart.figure.classList.add("large");
    chart.draw(chosen, view.axis, index === 0);
  });
  return names.length - shown.length;
}

function drawCurves() {
  const chosen = chosenRuns(state.picked);
  by("curves").hidden = !chosen.length;
  if (!chosen.length) return;
  const labels = [...new Map(chosen.map((run) => [run.label, run.index]))].sort((a, b) => a[1] - b[1]);
  fill(by("legend"), labels.concat([[chosen.length, 0]]), () => labels.map(([label, index]) => { const seeds = chosen.filter((run) => run.label === label).length; return h("li", null, sample(index), label, seeds > 1 ? h("span", { class: "soft" }, `${seeds} runs`) : null); }));
  const hidden = drawCharts("charts", chosen, !view.all);
  by("more").hidden = !hidden && !view.all;
  setText(by("more"), view.all ? "Show fewer metrics" : `Show ${hidden} more metrics`);
}

function say(before) {
  const lines = [];
  for (const [id, old] of before) {
    const run = state.runs.get(id);
    if (old && run && old.status !== run.status) lines.push(`${nameOf(run)} is ${run.status}`);
  }
  if (lines.length) setText(by("news"), lines.slice(0, 3).join(". "));
}

function draw() {
  const all = runs(), count = (status) => all.filter((run) => run.status === status).length;
  const words = [`${whole(all.length)} run${all.length === 1 ? "" : "s"}`, `${count("running")} running`, `${count("finished")} finished`];
  setText(by("totals"), state.complete ? words.join(" · ") : `reading … ${words[0]} so far`);
  document.title = count("running") ? `${count("running")} running · Tacit` : "Tacit";
  drawDetail(soon);
  if (opened()) {
    if (by("detail-charts")) drawCharts("detail-charts", chosenRuns([opened()]), false);
    return;
  }
  const alone = state.runs.size === 0 && [...state.panels.values()].some((panel) => panel.kind === "site");
  by("groups").hidden = by("runs").hidden = alone;
  drawPanels();
  drawAttention();
  drawGroups();
  drawCurves();
  drawTable(redraw);
}

function redraw() { draw(); soon(); }

function makeControls() {
  by("axes").append(...Object.entries(AXES).map(([name, axis]) => h("label", null, h("input", { type: "radio", name: "axis", value: name, checked: name === view.axis, onchange: () => { view.axis = name; draw(); } }), axis.title)));
  by("more").addEventListener("click", () => { view.all = !view.all; draw(); });
  const themes = ["system", "light", "dark"];
  const theme = (name) => { if (name === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name; setText(by("theme"), `Theme: ${name}`); };
  by("theme").addEventListener("click", () => theme(themes[(themes.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % 3]));
  makeTable(redraw);
  addEventListener("hashchange", () => { if (!opened()) by("runs").focus({ preventScroll: true }); draw(); soon(); });
  addEventListener("resize", () => requestAnimationFrame(draw));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && opened()) location.hash = "";
    if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName) && !opened()) { event.preventDefault(); by("filter").focus(); }
  });
}

let waiting = false, drawnAt = 0;
const soon = follow(opened, ({ changed, before }) => {
  by("link").className = state.live ? "link live" : "link lost";
  setText(by("link-text"), state.live ? "live" : "not reachable: is `tacit watch` still running?");
  say(before);
  if (waiting || (!changed && Date.now() - drawnAt < 1000)) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawnAt = Date.now();
    pickForPerson();
    draw();
    state.cost = Date.now() - drawnAt;
  });
});
makeControls();
draw();
