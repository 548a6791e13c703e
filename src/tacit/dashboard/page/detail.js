// Everything about one run.
import { bytes, duration, percent, whole } from "./format.js";
import { by, facts, fill, h, stateOf, track } from "./parts.js";
import { ask, now, state } from "./state.js";
import { left, nameOf } from "./table.js";

const known = { id: "", seen: -1, at: 0, more: null, missing: false };
export const opened = () => location.hash.startsWith("#run=") ? location.hash.slice(5) : "";

function current(run) {
  const round = run.current;
  if (!round) return run.status === "running" ? h("p", { class: "soft" }, "Preparing or evaluating.") : null;
  const spent = Math.max(0, now() - run.moved);
  return [h("p", null, `Round ${round.round}: ${round.counts.answered} of ${round.total} answered`, round.counts.working ? `, ${round.counts.working} working` : "", round.counts.failed ? `, ${round.counts.failed} failed` : "", `; last change ${duration(spent)} ago.`),
    track(round.counts.answered / (round.total || 1), "clients that answered"),
    h("ul", { class: "clients" }, round.clients.map((client) => h("li", { class: client.state }, `${client.name}: ${client.state}${client.about ? ` (${client.about})` : ""}`)), round.total > round.clients.length ? h("li", null, `and ${round.total - round.clients.length} more`) : null)];
}

function holdings(found) {
  const most = Math.max(1, ...found.clients.flatMap((client) => client.classes));
  const few = found.classes.length <= 20;
  return [h("p", { class: "small soft" }, `${whole(found.count)} clients; ${whole(found.server)} labels at the server.`, found.count > found.clients.length ? ` The first ${found.clients.length} are shown.` : ""),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Who holds what", "data-scroll": "holdings" }, h("table", { class: "holdings" },
      h("thead", null, h("tr", null, h("th", { scope: "col" }, "Holder"), h("th", { scope: "col", class: "r" }, "Labeled"), h("th", { scope: "col", class: "r" }, "Unlabeled"), few ? found.classes.map((name) => h("th", { scope: "col" }, name)) : null)),
      h("tbody", null, found.clients.map((client) => h("tr", null, h("th", { scope: "row" }, client.name), h("td", { class: "r" }, whole(client.labeled)), h("td", { class: "r" }, whole(client.unlabeled)),
        few ? found.classes.map((_, place) => { const cell = h("td", { class: "cell" }, client.classes[place] ? whole(client.classes[place]) : ""); cell.style.setProperty("--share", (client.classes[place] ?? 0) / most); return cell; }) : null)))))];
}

const card = (title, ...parts) => h("section", { class: "card", "aria-label": title }, h("h3", null, title), ...parts);
const wide = (element) => { element.classList.add("wide"); return element; };
const lines = (name, list) => h("pre", { tabindex: "0", "aria-label": name, "data-scroll": name, "data-focus": name, "data-end": "" }, list.join("\n"));

function rest(more) {
  return [
    more.scores.length ? card("Scores at the sites", h("ul", { class: "say" }, more.scores.map((each) => h("li", null, `${each.site}: ${Object.entries(each.scores).map(([name, value]) => `${name.replaceAll("_", " ")} ${percent(value)}`).join(", ")}`)))) : null,
    more.holdings ? wide(card("Who holds what", ...holdings(more.holdings))) : null,
    wide(card("Log", more.log.length ? lines("Log", more.log) : h("p", { class: "soft" }, "Nothing yet."))),
    more.skips.length || more.left_out.length ? card("Clients left out", more.left_out.length ? h("p", null, `Left out of all rounds: ${more.left_out.join(", ")}.`) : null,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Clients left out", "data-scroll": "skips" }, h("table", null, h("thead", null, h("tr", null, ["Round", "Client", "Reason"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", null, more.skips.map((skip) => h("tr", null, h("th", { scope: "row" }, skip.round), h("td", null, skip.client), h("td", null, skip.reason))))))) : null,
    more.errors.length ? card("Errors", lines("Errors", more.errors)) : null,
    card("Config", h("pre", { tabindex: "0", "aria-label": "Config", "data-scroll": "config", "data-focus": "config" }, more.config)),
    more.card ? card("Card", h("pre", { tabindex: "0", "aria-label": "Card", "data-scroll": "card", "data-focus": "card" }, more.card)) : null,
    card("Files", h("p", { class: "small soft" }, more.folder), h("ul", { class: "files" }, more.files.map((file) => h("li", null, h("a", { href: `files/${more.id}/${file.name}`, target: "_blank", rel: "noopener noreferrer", "data-focus": `f${file.name}` }, file.name), h("span", { class: "soft small" }, ` ${bytes(file.size)}`))))),
  ];
}

export function drawDetail(soon) {
  const id = opened(), run = state.runs.get(id), area = by("detail");
  area.hidden = !id;
  by("overview").hidden = !!id;
  if (!id) { known.id = ""; return; }
  if (known.id !== id) {
    Object.assign(known, { id, seen: -1, at: 0, more: null, missing: false });
    area.replaceChildren(h("p", { class: "back" }, h("a", { href: "#" }, "← All runs")), h("h1", { id: "detail-title", tabindex: "-1" }), h("div", { id: "detail-top" }), h("div", { id: "detail-charts", class: "charts" }), h("div", { id: "detail-now" }), h("div", { id: "detail-rest", class: "two" }));
    by("detail-title").focus();
    soon();
  }
  by("detail-title").textContent = run ? `${nameOf(run)}${run.seed == null ? "" : `, seed ${run.seed}`}` : state.complete ? "This run is gone" : "…";
  if (!run) { for (const name of ["detail-top", "detail-now", "detail-rest"]) fill(by(name), "gone", () => []); known.more = null; return; }
  const stillTime = left(run);
  fill(by("detail-top"), [run, stillTime == null ? "" : duration(stillTime), known.more?.resume, known.more?.choice], () => [
    h("p", null, stateOf(run), run.problem ? ` – ${run.problem}` : ""),
    track(run.rounds ? run.done / run.rounds : 0, "rounds", run.status === "finished"),
    facts([["round", `${whole(run.done)} of ${whole(run.rounds)}`], ["accuracy", percent(run.accuracy)], ["best", percent(run.best)], stillTime != null && ["left", `≈ ${duration(stillTime)}`], ["time", duration(run.seconds)], ["bytes", bytes(run.bytes)], ["steps", whole(run.steps)], ["left out", whole(run.skipped)], run.rejected && ["rejected rounds", whole(run.rejected)]]),
    known.more?.choice ? h("p", null, known.more.choice) : null,
    ...run.notices.map((notice) => h("p", null, h("strong", null, "Notice: "), notice))]);
  fill(by("detail-now"), [run.current, run.status, run.current && Math.floor((now() - run.moved) / 2)], () => run.status === "running" ? card("Round in progress", ...[current(run)].flat().filter(Boolean)) : []);
  if ((known.seen !== run.length || Date.now() - known.at > 5000) && Date.now() - known.at > 900) {
    known.at = Date.now();
    known.seen = run.length;
    ask(`api/run/${id}`).then((more) => { if (known.id === more.id) { known.more = more; drawDetail(soon); } }).catch(() => {});
  }
  if (known.more) fill(by("detail-rest"), known.more, () => rest(known.more));
}
