// Numbers and names for people.
const TITLES = {
  accuracy: "Accuracy", loss: "Loss on the test set", local_accuracy: "Accuracy of the clients' own models",
  validation_accuracy: "Validation accuracy", pseudo_kept: "Pseudo-labels accepted", pseudo_accuracy: "Pseudo-labels correct",
  pseudo_unknown: "Pseudo-labels of unknown classes", complementary_accuracy: "Excluded classes correct", pseudo_class_share: "Share of the most frequent pseudo-label",
  loss_supervised: "Loss on labels", loss_unlabeled: "Loss on unlabeled samples", seconds_per_round: "Seconds per round",
  bytes_up: "Bytes up per round", bytes_down: "Bytes down per round", clients: "Clients that answered",
  skipped_clients: "Clients left out", auroc: "AUROC", macro_f1: "Macro F1",
};
const ORDER = ["accuracy", "validation_accuracy", "loss", "pseudo_kept", "pseudo_accuracy", "pseudo_unknown", "complementary_accuracy",
  "local_accuracy", "loss_supervised", "loss_unlabeled"];
const LAST = ["seconds_per_round", "bytes_up", "bytes_down", "clients", "skipped_clients"];
const SHARE = /accuracy|_kept$|_unknown$|share|auroc|f1|sensitivity|specificity|precision|recall/;

export const title = (name) => TITLES[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll("_", " ");
export const isShare = (name, low, high) => SHARE.test(name) && low >= 0 && high <= 1;
export const isBytes = (name) => name.startsWith("bytes");

export function byImportance(names) {
  const rank = (name) => ORDER.includes(name) ? ORDER.indexOf(name) - 100 : LAST.includes(name) ? 100 + LAST.indexOf(name) : /steps/.test(name) ? 50 : 0;
  return [...names].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

export const percent = (value) => value == null ? "–" : `${(100 * value).toFixed(1)} %`;
export const whole = (value) => value == null ? "–" : Math.round(value).toLocaleString("en");

export function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${Math.round(count ?? 0)} B`;
}

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 6000) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} days`;
}

export const ago = (seconds) => seconds < 2 ? "just now" : `${duration(seconds)} ago`;

export function number(value) {
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
  return size >= 1000 ? whole(value) : String(Number(value.toPrecision(3)));
}

export function metric(name, value, share) {
  return value == null ? "–" : share ? percent(value) : isBytes(name) ? bytes(value) : number(value);
}

export const AXES = {
  rounds: { title: "Round", text: whole, about: (x) => `round ${whole(x)}` },
  bytes: { title: "Bytes", text: (x) => bytes(x).replace(".0 ", " "), about: bytes },
  steps: { title: "Steps", text: (x) => x >= 1e6 ? `${Number((x / 1e6).toPrecision(3))} M` : whole(x), about: (x) => `${whole(x)} steps` },
  seconds: { title: "Time", text: duration, about: duration },
};
