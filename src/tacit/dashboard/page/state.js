// What the page knows, and the one loop that asks the server for what is new.
const PAUSE = 500, HIDDEN = 4000, LOST = 2000, MOST = 48;

export const state = {
  boot: "", revision: -1, complete: false, now: 0, skew: 0, live: false, cost: 0,
  runs: new Map(), groups: [], panels: new Map(),
  series: new Map(), // rows of the runs in the charts, by id
  picked: new Set(), chosen: false, // chosen: by the person, not by the page
};

export const runs = () => [...state.runs.values()];
export const now = () => Date.now() / 1000 + state.skew;

// Until someone picks runs, the charts show what runs now and, with it, the runs it is compared with.
export function pickForPerson() {
  if (state.chosen) return;
  const all = runs().filter((run) => run.length);
  const order = (run) => (run.status === "running" ? 1e12 : 0) + run.moved;
  const latest = all.sort((a, b) => order(b) - order(a));
  const group = latest[0]?.group;
  const near = latest.filter((run) => run.group === group);
  state.picked = new Set((near.length > 1 ? near : latest).slice(0, 12).map((run) => run.id));
}

export function pick(id, on) {
  state.chosen = true;
  if (on && state.picked.size < MOST) state.picked.add(id);
  else state.picked.delete(id);
}

function wanted(extra) {
  const ids = new Set([...state.picked, ...(extra ? [extra] : [])]);
  for (const id of state.series.keys()) if (!ids.has(id)) state.series.delete(id);
  return [...ids].filter((id) => state.runs.get(id)?.length).map((id) => {
    const known = state.series.get(id);
    return `${id}:${known?.epoch ?? 0}:${known?.rounds.length ?? 0}`;
  }).join(",");
}

function extended(known, rows) {
  if (!known || known.epoch !== rows.epoch || rows.from === 0) known = { epoch: rows.epoch, rounds: [], totals: { seconds: [], steps: [], bytes: [] }, values: {} };
  const before = known.rounds.length;
  known.rounds.push(...rows.rounds);
  for (const [name, column] of Object.entries(rows.totals)) known.totals[name].push(...column);
  for (const [name, column] of Object.entries(rows.values)) (known.values[name] ??= new Array(before).fill(null)).push(...column);
  for (const column of Object.values(known.values)) while (column.length < known.rounds.length) column.push(null);
  known.version = (known.version ?? 0) + 1;
  return known;
}

function take(answer) {
  if (answer.boot !== state.boot) { state.runs.clear(); state.panels.clear(); state.series.clear(); }
  Object.assign(state, { boot: answer.boot, revision: answer.revision, complete: answer.complete, now: answer.now });
  state.skew = answer.now - Date.now() / 1000;
  const changed = answer.runs.length > 0 || answer.ids != null || Object.keys(answer.panels).length > 0 || Object.keys(answer.series).length > 0;
  const before = new Map(answer.runs.map((run) => [run.id, state.runs.get(run.id)]));
  for (const run of answer.runs) state.runs.set(run.id, run);
  for (const [name, panel] of Object.entries(answer.panels)) state.panels.set(name, panel);
  if (answer.ids) {
    const there = new Set(answer.ids);
    for (const id of state.runs.keys()) if (!there.has(id)) { state.runs.delete(id); state.picked.delete(id); state.series.delete(id); }
    state.groups = answer.groups;
    for (const name of state.panels.keys()) if (!answer.panel_names.includes(name)) state.panels.delete(name);
  }
  for (const [id, rows] of Object.entries(answer.series)) state.series.set(id, extended(state.series.get(id), rows));
  pickForPerson();
  return { changed, before };
}

export async function ask(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(15000), cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

export function follow(opened, show) {
  let timer = 0, busy = false;
  async function once() {
    if (busy) return;
    busy = true;
    let pause = document.hidden ? HIDDEN : Math.max(PAUSE, 4 * state.cost); // a slow machine draws less often
    try {
      const query = new URLSearchParams({ boot: state.boot, since: state.revision, series: wanted(opened()) });
      const known = state.picked.size;
      const news = take(await ask(`api/updates?${query}`));
      if (state.picked.size !== known) pause = 30; // their rows are still missing
      state.live = true;
      show(news);
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof DOMException || /^\d+$/.test(error.message))) console.error(error);
      state.live = false;
      pause = LOST;
      show({ changed: false, before: new Map() });
    }
    busy = false;
    timer = setTimeout(once, pause);
  }
  const soon = () => { clearTimeout(timer); timer = setTimeout(once, 0); };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });
  once();
  return soon;
}
