// The strongest edges of a circuit: heads in rows of layers, the lowest at the bottom, and an arrow per edge.

import { make, makeSvg } from "attn/parts/elements.js";
import { fixed } from "attn/values/numbers.js";

const [ACROSS, DOWN, LABELS, MARGIN] = [64, 54, 70, 14];
const [NODE_WIDTH, NODE_HEIGHT] = [44, 20];
const LEAST_WIDTH = 520;
const [THINNEST, THICKEST] = [1, 5];
const SIDES = { key: "K keys", query: "Q queries", value: "V values", logit: "into the logits" };

export function show(container, report, graph) {
  container.replaceChildren(...partsOf(graph));
}

function partsOf({ nodes, edges, rows }) {
  const most = Math.max(...rows.map((_, row) => nodes.filter((node) => node.row === row).length));
  const width = Math.max(LEAST_WIDTH, most * ACROSS);
  const height = rows.length * DOWN;
  const at = new Map(
    nodes.map(({ name, x, row }) => [name, [LABELS + x * width, MARGIN + height - (row + 0.5) * DOWN]]),
  );
  const strongest = Math.max(...edges.map(({ strength }) => Math.abs(strength)));
  const svg = makeSvg("svg", {
    viewBox: `0 0 ${LABELS + width + MARGIN} ${height + 2 * MARGIN}`,
    role: "group",
    class: "graph",
    "aria-label": "Heads in rows of layers, with an arrow for each edge",
  });
  rows.forEach((name, row) => {
    const label = makeSvg("text", { x: 0, y: MARGIN + height - (row + 0.5) * DOWN + 4, class: "row" }, name);
    svg.append(label);
  });
  const drawn = edges.map((edge) => {
    const line = makeSvg("path", {
      d: arrow(at.get(edge.start), at.get(edge.end)),
      class: `edge of-${edge.side}${edge.strength < 0 ? " less" : ""}`,
      "stroke-width": THINNEST + ((THICKEST - THINNEST) * Math.abs(edge.strength)) / strongest,
    });
    line.append(makeSvg("title", {}, textOf(edge)));
    svg.append(line);
    return [edge, line];
  });
  const status = make("p", { class: "quiet", role: "status" });
  const hint = "Click a head to list its edges.";
  status.textContent = hint;
  let chosen = null;
  const marks = new Map();
  const choose = (name) => {
    chosen = chosen === name ? null : name;
    for (const [other, mark] of marks) mark.setAttribute("aria-pressed", other === chosen);
    const isOfChosen = ({ start, end }) => start === chosen || end === chosen;
    for (const [edge, line] of drawn) line.classList.toggle("faint", chosen !== null && !isOfChosen(edge));
    const texts = drawn.filter(([edge]) => isOfChosen(edge)).map(([edge]) => textOf(edge));
    status.textContent = chosen === null ? hint : texts.join("; ");
  };
  for (const [name, [x, y]] of at) {
    const box = { x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2, width: NODE_WIDTH, height: NODE_HEIGHT, rx: 5 };
    const mark = makeSvg(
      "g",
      { class: "node", tabindex: 0, role: "button", "aria-pressed": false, "aria-label": name },
      makeSvg("rect", box),
      makeSvg("text", { x, y: y + 4, "text-anchor": "middle" }, name),
    );
    mark.addEventListener("click", () => choose(name));
    mark.addEventListener("keydown", (event) => {
      if (!["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      choose(name);
    });
    marks.set(name, mark);
    svg.append(mark);
  }
  const shown = new Set(edges.map(({ side }) => side));
  const keys = Object.entries(SIDES)
    .filter(([side]) => shown.has(side))
    .map(([side, text]) => make("span", { class: `side of-${side}`, text }));
  return [make("p", { class: "graph-sides" }, ...keys), svg, status];
}

const textOf = ({ start, letter, end, strength }) =>
  `${start} ${letter ? `-${letter}->` : "->"} ${end} ${fixed(strength, 2)}`;

// An arrow from the top of one head to the bottom of another, bent if it passes other rows.
function arrow([x, y], [toX, toY]) {
  const [start, end] = [y - NODE_HEIGHT / 2, toY + NODE_HEIGHT / 2 + 2];
  const bend = start - end > DOWN ? NODE_WIDTH * 0.7 : 0;
  const middle = (start + end) / 2;
  const head = `M ${toX - 4} ${end + 7} L ${toX} ${end} L ${toX + 4} ${end + 7}`;
  return `M ${x} ${start} C ${x + bend} ${middle}, ${toX + bend} ${middle}, ${toX} ${end} ${head}`;
}
