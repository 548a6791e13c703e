// Elements. Text is always set as text, never as markup: others may have written it.
const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
export const by = (id) => document.getElementById(id);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

export function track(share, label, done = false) {
  const inner = h("div"), percent = Math.round(100 * Math.min(1, Math.max(0, share || 0)));
  inner.style.width = `${percent}%`;
  return h("div", { class: done ? "track done" : "track", role: "progressbar", "aria-label": label, "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100 }, inner);
}

// Replaces the content of an element only if what it is made of has changed, so that focus and scrolling stay.
const made = new WeakMap();
export function fill(element, key, make) {
  const text = JSON.stringify(key);
  if (made.get(element) === text) return false;
  const scrolls = new Map([...element.querySelectorAll("[data-scroll]")].map((e) => [e.dataset.scroll, [e.scrollTop, e.scrollHeight - e.clientHeight - e.scrollTop < 4]]));
  const focus = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  element.replaceChildren(...[make()].flat().filter(Boolean));
  for (const each of element.querySelectorAll("[data-scroll]")) {
    const [top, end] = scrolls.get(each.dataset.scroll) ?? [0, each.dataset.end != null];
    each.scrollTop = end && each.dataset.end != null ? each.scrollHeight : top;
  }
  if (focus) element.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  made.set(element, text);
  return true;
}

export function stateOf(run) {
  const name = run.stalled ? "stalled" : run.status;
  return h("span", { class: `state ${name}` }, name);
}
