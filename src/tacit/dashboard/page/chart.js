// Line charts, drawn as SVG: one figure per metric, with a cross that follows pointer and arrow keys.
import { AXES, bytes, isBytes, isShare, metric, title } from "./format.js";
import { h, svg } from "./parts.js";

const DASHES = ["", "6 3", "2 3", "8 3 2 3", "12 4"];
const PAD = { left: 50, right: 10, top: 10, bottom: 24 };

export const look = (index) => ({ kind: index % 6, dash: DASHES[Math.floor(index / 6) % DASHES.length] });

export function sample(index) {
  const { kind, dash } = look(index);
  return svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, svg("line", { x1: 1, x2: 25, y1: 5, y2: 5, class: `curve k${kind}`, "stroke-dasharray": dash }));
}

export function ticks(low, high, count, digits = [1, 2, 2.5, 5, 10]) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = digits.map((digit) => digit * power).find((each) => each >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

// The lowest and the highest of each column, so that no peak is lost.
export function thinned(points, width) {
  if (points.length <= 2 * width) return points;
  const first = points[0][0], span = points.at(-1)[0] - first || 1, kept = [];
  let column = -1, low = null, high = null;
  const close = () => { if (low) kept.push(...(low === high ? [low] : low[0] <= high[0] ? [low, high] : [high, low])); };
  for (const point of points) {
    const at = Math.floor((point[0] - first) / span * width);
    if (at !== column) { close(); column = at; low = high = point; }
    if (point[1] < low[1]) low = point;
    if (point[1] > high[1]) high = point;
  }
  close();
  return kept;
}

// The points of a curve; those of earlier rounds are kept with the rows.
function pointsOf(rows, name, axis) {
  const xs = axis === "rounds" ? rows.rounds : rows.totals[axis], ys = rows.values[name];
  if (!ys) return [];
  rows.points ??= {};
  const known = (rows.points[`${axis} ${name}`] ??= { seen: 0, found: [] });
  for (; known.seen < ys.length; known.seen++) if (ys[known.seen] != null && xs[known.seen] != null) known.found.push([xs[known.seen], ys[known.seen]]);
  return known.found;
}

function range(curves, name) {
  let low = Infinity, high = -Infinity, end = 0, start = Infinity;
  for (const { points } of curves) for (const [x, y] of points) {
    if (y < low) low = y;
    if (y > high) high = y;
    if (x > end) end = x;
    if (x < start) start = x;
  }
  const share = isShare(name, low, high);
  if (!share && low > 0 && low < 0.4 * high) low = 0;
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  const bottom = low === 0 ? 0 : share ? Math.max(0, low - room) : low >= 0 ? Math.max(0, low - room) : low - room;
  return { low: bottom, high: share ? Math.min(1, high + room) : high + room, start: Math.min(start, end), end: end || 1, share };
}

export class Chart {
  constructor(name) {
    this.name = name;
    this.value = h("span", { class: "soft" });
    this.area = svg("svg", { role: "img", tabindex: "0" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.figure = h("figure", { class: "chart", "data-metric": name }, h("figcaption", null, h("span", null, title(name)), this.value), this.area, this.tip);
    this.said = document.getElementById("news");
    this.area.addEventListener("pointermove", (event) => this.point(event));
    this.area.addEventListener("pointerleave", () => this.show(null));
    this.area.addEventListener("blur", () => this.show(null));
    this.area.addEventListener("keydown", (event) => this.key(event));
  }

  // `chosen`: [{ id, label, index, rows }]; draws again only if something is new.
  draw(chosen, axis, large) {
    const width = Math.round(this.area.clientWidth) || 300, height = large && width > 460 ? 356 : 168;
    const key = [axis, width, height, ...chosen.map((run) => `${run.id} ${run.index} ${run.label} ${run.rows.epoch} ${run.rows.version}`)].join();
    if (key === this.key_) return;
    this.key_ = key;
    this.figure.classList.toggle("large", large);
    this.axis = axis;
    this.curves = chosen.map((run) => ({ ...run, points: pointsOf(run.rows, this.name, axis) })).filter((curve) => curve.points.length);
    this.figure.hidden = !this.curves.length;
    if (!this.curves.length) return;
    const box = this.box = { width, height, ...range(this.curves, this.name) };
    const inner = width - PAD.left - PAD.right, tall = height - PAD.top - PAD.bottom;
    this.x = (x) => PAD.left + (box.end === box.start ? inner / 2 : (x - box.start) / (box.end - box.start) * inner);
    this.y = (y) => PAD.top + tall - (y - box.low) / (box.high - box.low || 1) * tall;
    const parts = [];
    for (const y of ticks(box.low, box.high, large ? 6 : 4)) {
      parts.push(svg("line", { class: "grid", x1: PAD.left, x2: width - PAD.right, y1: this.y(y), y2: this.y(y) }));
      parts.push(svg("text", { x: PAD.left - 6, y: this.y(y) + 4, "text-anchor": "end" }, this.short(y)));
    }
    const marks = ticks(box.start, box.end, Math.max(3, Math.floor(inner / 70)), axis === "rounds" ? [1, 2, 5, 10] : undefined);
    for (const x of axis === "rounds" ? marks.filter(Number.isInteger) : marks) {
      const at = this.x(x);
      parts.push(svg("text", { x: at, y: height - 6, "text-anchor": at > width - 30 ? "end" : "middle" }, AXES[axis].text(x)));
    }
    for (const curve of this.curves) {
      const { kind, dash } = look(curve.index), drawn = thinned(curve.points, Math.ceil(inner / 2));
      const path = `M${drawn.map(([x, y]) => `${Math.round(10 * this.x(x)) / 10} ${Math.round(10 * this.y(y)) / 10}`).join("L")}`;
      parts.push(svg("path", { class: `curve k${kind}`, "stroke-dasharray": dash, d: path }));
      const [x, y] = curve.points.at(-1);
      parts.push(svg("circle", { class: `f${kind}`, cx: this.x(x), cy: this.y(y), r: 2.8 }));
    }
    this.mark = svg("line", { class: "cross", y1: PAD.top, y2: height - PAD.bottom, visibility: "hidden" });
    this.area.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.area.setAttribute("height", height);
    this.area.setAttribute("aria-label", this.words());
    this.area.replaceChildren(...parts, this.mark);
    this.value.textContent = this.curves.length === 1 ? this.full(this.curves[0].points.at(-1)[1]) : "";
    if (this.at != null) this.show(Math.min(this.at, box.end));
  }

  full(value) { return metric(this.name, value, this.box.share); }
  short(value) { return this.box.share ? `${Number((100 * value).toFixed(1))} %` : isBytes(this.name) ? bytes(value).replace(".0 ", " ") : this.full(value); }

  words() {
    const each = this.curves.slice(0, 12).map((curve) => `${curve.label}: ${this.full(curve.points[0][1])} at ${AXES[this.axis].about(curve.points[0][0])}, ${this.full(curve.points.at(-1)[1])} at ${AXES[this.axis].about(curve.points.at(-1)[0])}.`);
    return `${title(this.name)} by ${AXES[this.axis].title.toLowerCase()}. ${each.join(" ")} Arrow keys read values.`;
  }

  point(event) {
    const place = this.area.getBoundingClientRect();
    const inner = place.width - PAD.left - PAD.right, share = (event.clientX - place.left - PAD.left) / inner;
    this.show(this.box.start + Math.min(1, Math.max(0, share)) * (this.box.end - this.box.start));
  }

  key(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 };
    if (event.key === "Escape" && this.at != null) { this.show(null); event.stopPropagation(); return; }
    const xs = this.curves.reduce((a, b) => (a.points.length >= b.points.length ? a : b)).points.map((point) => point[0]);
    let at = this.at == null ? xs.length : xs.findIndex((x) => x >= this.at);
    if (event.key === "Home") at = 0;
    else if (event.key === "End") at = xs.length - 1;
    else if (event.key in moves) at += moves[event.key];
    else return;
    event.preventDefault();
    this.show(xs[Math.min(xs.length - 1, Math.max(0, at))], true);
  }

  show(at, aloud = false) {
    this.at = at;
    this.mark?.setAttribute("visibility", at == null ? "hidden" : "visible");
    this.tip.hidden = at == null;
    if (at == null) return;
    const near = this.curves.map((curve) => ({ ...curve, point: nearest(curve.points, at) })).sort((a, b) => b.point[1] - a.point[1]).slice(0, 10);
    const best = near.reduce((a, b) => (Math.abs(a.point[0] - at) <= Math.abs(b.point[0] - at) ? a : b)).point[0], x = this.x(best);
    this.mark.setAttribute("x1", x);
    this.mark.setAttribute("x2", x);
    this.tip.replaceChildren(h("p", { class: "soft" }, AXES[this.axis].about(best)), ...near.map((curve) => h("p", null, sample(curve.index), h("span", null, curve.label), h("span", { class: "num" }, this.full(curve.point[1])))));
    const left = x > this.box.width / 2 ? x - this.tip.offsetWidth : x + 24;
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = "2.2rem";
    if (aloud) this.said.textContent = `${AXES[this.axis].about(best)}: ${near.map((curve) => `${curve.label} ${this.full(curve.point[1])}`).join(", ")}`;
  }
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] < x) low = middle; else high = middle; }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
}
