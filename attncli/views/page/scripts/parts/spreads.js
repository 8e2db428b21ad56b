// Means with their standard deviations, one row per state.

import { make, makeSvg } from "./elements.js";
import { fixed } from "../values/numbers.js";

const REFERENCES = [-1, 0, 1]; // the ends of a standard deviation around a mean of 0
const CAP = 0.2; // half the height of an end of a bar, as a share of the row

// A bar from the mean minus to the mean plus the standard deviation for each name, with lines at -1, 0 and 1.
export function spreadsOf({ title, names, means, deviations }) {
  const ends = means.map((mean, i) => [mean - deviations[i], mean + deviations[i]]);
  const known = [...REFERENCES, ...ends.flat()].filter(Number.isFinite);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const margin = 0.05 * (high - low);
  const line = (kind, x1, x2, y1, y2) => makeSvg("line", { class: kind, x1, x2, y1, y2 });
  const rows = names.flatMap((name, i) => {
    const svg = makeSvg("svg", { viewBox: `${low - margin} 0 ${high - low + 2 * margin} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
    svg.append(...REFERENCES.map((at) => line("grid", at, at, 0, 1)));
    if (Number.isFinite(means[i]) && Number.isFinite(deviations[i])) {
      const [from, to] = ends[i];
      svg.append(line("spread", from, to, 0.5, 0.5));
      for (const [at, size] of [[from, CAP], [to, CAP], [means[i], 2 * CAP]]) svg.append(line("spread", at, at, 0.5 - size, 0.5 + size));
    }
    return [make("span", { text: name }), svg, make("span", { class: "number", text: `${fixed(means[i], 2)} ± ${fixed(deviations[i], 2)}` })];
  });
  const axis = make("div", { class: "spread-axis" });
  for (const at of REFERENCES) {
    const label = make("span", { text: String(at) });
    label.style.left = `${(100 * (at - low + margin)) / (high - low + 2 * margin)}%`;
    axis.append(label);
  }
  const caption = make("figcaption", {}, make("b", { text: title }), make("span", { class: "quiet", text: " (mean ± standard deviation)" }));
  return make("figure", {}, caption, make("div", { class: "spreads" }, ...rows, make("span"), axis, make("span")));
}
