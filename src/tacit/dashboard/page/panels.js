// Groups of runs, what needs attention, hubs and sites.
import { ago, bytes, duration, percent, whole } from "./format.js";
import { by, facts, fill, h, track } from "./parts.js";
import { now, runs, state } from "./state.js";
import { left, nameOf } from "./table.js";

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const KINDS = { benchmark: "benchmark", comparison: "comparison", search: "search", folder: "runs" };

function timeLeft(members) {
  const paces = members.filter((run) => run.pace);
  const open = members.filter((run) => ["running", "waiting"].includes(run.status));
  const busy = open.filter((run) => run.status === "running").length;
  if (!paces.length || !busy) return null;
  const all = mean(paces.map((run) => run.pace));
  const paceOf = (run) => { const same = paces.filter((other) => other.label === run.label); return run.pace ?? (same.length ? mean(same.map((other) => other.pace)) : all); };
  return open.reduce((sum, run) => sum + (left(run) ?? paceOf(run) * (run.rounds - run.done)), 0) / busy;
}

function ranks(members) {
  const rows = new Map();
  for (const run of members.filter((each) => each.accuracy != null)) rows.set(nameOf(run), [...(rows.get(nameOf(run)) ?? []), run]);
  return [...rows].map(([name, each]) => ({ name, accuracy: mean(each.map((run) => run.accuracy)), seeds: each.length, open: each.some((run) => run.status === "running") }))
    .sort((a, b) => b.accuracy - a.accuracy);
}

function groupCard(group, members) {
  const count = (status) => members.filter((run) => run.status === status).length;
  const finished = count("finished"), ended = finished + count("diverged") + count("failed");
  const running = members.filter((run) => run.status === "running");
  const rounds = members.reduce((sum, run) => sum + run.rounds, 0), done = members.reduce((sum, run) => sum + Math.min(run.done, run.rounds), 0);
  const rest = timeLeft(members), ranked = ranks(members), noun = group.kind === "benchmark" ? "cells" : group.kind === "search" ? "trials" : "runs";
  const doing = running.length ? "running" : group.working ? "between runs" : ended === members.length ? "finished" : count("waiting") ? "not running" : "stopped";
  const title = members.length === 1 && group.kind === "folder" ? nameOf(members[0]) : group.title;
  return h("section", { class: "card", "data-group": group.id, "aria-label": title },
    h("div", { class: "top" }, h("h3", null, members.length === 1 ? h("a", { href: `#run=${members[0].id}`, "data-focus": `g${group.id}` }, title) : title), h("span", { class: "tag" }, `${KINDS[group.kind] ?? group.kind} · ${doing}`)),
    track(rounds ? done / rounds : 0, `${title}: rounds done`, doing === "finished"),
    facts([[noun, `${finished} of ${members.length}`], ["rounds", `${whole(done)} of ${whole(rounds)}`], rest != null && ["left", `≈ ${duration(rest)}`], ranked[0] && ["best so far", percent(ranked[0].accuracy)]]),
    ...running.slice(0, 4).map((run) => h("p", { class: "small" }, h("a", { href: `#run=${run.id}`, "data-focus": `r${run.id}` }, nameOf(run)), ` seed ${run.seed}: round ${whole(run.done + 1)} of ${whole(run.rounds)}`,
      run.current ? `, ${run.current.counts.answered} of ${run.current.total} clients answered` : "")),
    running.length > 4 ? h("p", { class: "small soft" }, `and ${running.length - 4} more running`) : null,
    ranked.length > 1 ? h("ol", { class: "ranks", "aria-label": "Best so far" }, ranked.slice(0, 5).map((row) => h("li", null, h("span", null, row.name), h("span", { class: "soft" }, row.open ? "running" : row.seeds > 1 ? `${row.seeds} seeds` : ""), h("span", { class: "num" }, percent(row.accuracy))))) : null);
}

export function drawGroups() {
  const of = new Map(state.groups.map((group) => [group.id, []]));
  for (const run of runs()) of.get(run.group)?.push(run);
  const activity = (members) => Math.max(...members.map((run) => (run.status === "running" ? 1e12 : 0) + run.moved));
  const shown = state.groups.map((group) => [group, of.get(group.id)]).filter(([, members]) => members.length).sort((a, b) => activity(b[1]) - activity(a[1])).slice(0, 12);
  const list = by("group-list");
  for (const [place, [group, members]] of shown.entries()) {
    const slot = list.children[place] ?? list.appendChild(h("div"));
    const seconds = timeLeft(members);
    fill(slot, [group, members.map((run) => [run.id, run.status, run.done, run.rounds, run.accuracy, run.label, run.current?.counts]), seconds == null ? 0 : duration(seconds)], () => groupCard(group, members));
  }
  while (list.children.length > shown.length) list.lastChild.remove();
  by("nothing").hidden = shown.length > 0;
  by("nothing").textContent = state.complete ? "No runs yet. A run shows up here a moment after it starts." : "Looking for runs …";
}

export function drawAttention() {
  const lines = [];
  for (const run of runs()) {
    const who = `${nameOf(run)}${run.seed == null ? "" : `, seed ${run.seed}`}`;
    if (run.stalled) lines.push([run.id, who, `nothing has happened for ${duration(Math.floor((now() - run.moved) / 30) * 30)}, although a process works on it`]);
    if (["failed", "diverged", "broken"].includes(run.status)) lines.push([run.id, who, run.problem || run.status]);
    if (["running", "finished"].includes(run.status)) for (const notice of run.notices) lines.push([run.id, who, notice]);
    if (run.damaged) lines.push([run.id, who, `${run.damaged} damaged lines in rounds.jsonl are left out`]);
  }
  by("attention").hidden = !lines.length;
  fill(by("attention-list"), lines, () => lines.slice(0, 20).map(([id, who, text]) => h("li", null, h("a", { href: `#run=${id}`, "data-focus": `a${id}` }, who), `: ${text}`)).concat(lines.length > 20 ? [h("li", null, `and ${lines.length - 20} more`)] : []));
}

// --- hubs and sites -------------------------------------------------------------------------------------------------

function rows(heads, lines, caption) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, "data-scroll": caption }, h("table", null, h("caption", { class: "unseen" }, caption),
    h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", null, lines.map((line) => h("tr", null, line.map((cell, place) => h(place ? "td" : "th", place ? null : { scope: "row" }, cell)))))));
}

function hub(panel) {
  return h("section", { class: "card wide", "data-panel": "hub", "aria-label": panel.title },
    h("div", { class: "top" }, h("h3", null, panel.title), h("span", { class: "tag" }, panel.running ? "hub · running" : "hub · not running")),
    facts([["address", panel.address], ["sites connected", `${panel.sites.filter((site) => site.connected).length} of ${panel.sites.length}`], ["certificate", panel.certificate], ["storage", bytes(panel.storage)], ["privacy", panel.privacy]]),
    panel.problem ? h("p", null, panel.problem) : null,
    panel.sites.length ? rows(["Site", "State", "Last contact", "Version", "Declares", "Rounds joined", "Left out"], panel.sites.map((site) => [site.name,
      h("span", { class: `state ${site.refusal ? "refused" : site.connected ? "finished" : "waiting"}` }, site.refusal ? "refuses" : site.connected ? "connected" : "not connected"),
      site.contact ? ago(Math.max(0, now() - site.contact)) : "–", site.version || "–", site.declares || "–", whole(site.joined), site.left_out ? whole(site.left_out) : ""]), "Sites") : h("p", { class: "soft" }, panel.next),
    panel.sites.filter((site) => site.refusal).map((site) => h("p", null, h("strong", null, `${site.name} refuses: `), site.refusal)),
    panel.certificate_note ? h("p", null, panel.certificate_note) : null,
    panel.privacy_note ? h("p", { class: "soft small" }, panel.privacy_note) : null);
}

function site(panel) {
  return h("section", { class: "card wide", "data-panel": "site", "aria-label": panel.title },
    h("div", { class: "top" }, h("h3", null, panel.title), h("span", { class: "tag" }, `site · ${panel.state}`)),
    h("p", null, panel.doing),
    facts([["left this machine", bytes(panel.bytes)], ["replies", whole(panel.replies)], ["runs", whole(panel.runs)], panel.round && ["last round", whole(panel.round)]]),
    panel.warning ? h("p", null, h("strong", null, panel.warning)) : null,
    h("div", { class: "two" },
      h("div", null, h("h3", null, "What left this machine"), panel.entries.length ? h("ol", { class: "journal scroll", tabindex: "0", "aria-label": "Journal", "data-scroll": "journal" }, panel.entries.map((entry) => h("li", null, h("time", { datetime: entry.at }, new Date(entry.at).toLocaleString()), entry.text))) : h("p", { class: "soft" }, "Nothing has left this machine yet.")),
      h("div", null, h("h3", null, "What never leaves"), h("ul", { class: "say" }, panel.never.map((line) => h("li", null, line))),
        h("h3", null, "The model on your own samples"), h("ul", { class: "say" }, panel.scores.map((line) => h("li", null, line))),
        h("h3", null, "How to leave"), h("ul", { class: "say" }, panel.leave.map((line) => h("li", null, line))))));
}

const KINDS_OF_PANEL = { hub, site, problem: (panel) => h("section", { class: "card wide" }, h("h3", null, panel.title), h("p", null, panel.problem)) };

export function drawPanels() {
  const area = by("panels"), shown = [...state.panels].sort((a, b) => (a[0] < b[0] ? -1 : 1));
  area.hidden = !shown.length;
  area.classList.add("cards");
  for (const [place, [, panel]] of shown.entries()) {
    const slot = area.children[place] ?? area.appendChild(h("div", { class: "wide card-slot" }));
    fill(slot, [panel, Math.floor(now() / 10)], () => (KINDS_OF_PANEL[panel.kind] ?? KINDS_OF_PANEL.problem)(panel));
  }
  while (area.children.length > shown.length) area.lastChild.remove();
}
