// The strongest edges of a circuit: heads in rows of layers, the lowest at the bottom, and an arrow per edge. Pointing
// at a head, or focusing it, leaves its edges and names them.

import { layeredLayout } from "./layers.js";
import { openSheet } from "attn/page/sheet.js";
import { byId, fillSelect, make, makeSvg } from "attn/parts/elements.js";
import { linkTo } from "attn/parts/linked.js";
import { fixed } from "attn/values/numbers.js";

const [BOTTOM, TOP] = [22, 6];
const [LEAST_DOWN, MOST_DOWN] = [42, 240]; // between rows
const ABOVE_AND_BELOW = 300; // the height of the page's other parts, in a first screen without scrolling
const [THINNEST, THICKEST] = [1.5, 6];
const [ARROW, HIT_WIDTH] = [7, 10];
// Boxes and letters are larger in a graph of few rows.
const [SMALL, LARGE] = [{ height: 22, text: 12 }, { height: 32, text: 16 }];
const LEAST_FOR_LARGE = 100;
const [NARROW, FEW] = [560, 20]; // fewer edges are drawn first on a narrow page
const COUNTS = [10, 20, 40, 60, 100, 200];
// Name, place on the lower side of a box, and stroke of each side of a head that an edge feeds.
const SIDES = {
  key: { letter: "K", name: "into keys", text: "keys of ", port: -0.28 },
  query: { letter: "Q", name: "into queries", text: "queries of ", port: 0 },
  value: { letter: "V", name: "into values", text: "values of ", port: 0.28 },
  logit: { letter: "", name: "into the logits", text: "", port: 0 },
};

// Returns the function that selects a head, given its layer and number.
export function show(container, report, data) {
  const drawing = make("div", { class: "graph-box" });
  const legend = make("p", { class: "graph-legend" });
  const count = make("select", {});
  const between = data.edges.filter(([, , side]) => side !== "logit").length;
  const counts = [...new Set([...COUNTS.filter((each) => each < between), data.drawn, between])];
  counts.sort((one, other) => one - other);
  const first = container.clientWidth < NARROW ? counts.findLast((each) => each <= FEW) : null;
  fillSelect(count, counts.map((each) => [each, each]), first ?? data.drawn);
  const label = make("label", {}, "Edges between heads ", count);
  label.hidden = counts.length < 2;
  container.replaceChildren(make("div", { class: "controls" }, legend, label), drawing);
  let graph = null;
  const draw = () => {
    const chosen = graph?.chosen;
    graph = new Graph(drawing, drawnEdges(data, Number(count.value)), data);
    fillLegend(legend, graph, data.measure);
    graph.choose(graph.nodes.has(chosen) ? chosen : null);
  };
  count.addEventListener("change", draw);
  draw();
  let { width } = drawing.getBoundingClientRect();
  const observer = new ResizeObserver(() => {
    if (!drawing.isConnected) return observer.disconnect();
    if (!drawing.clientWidth || Math.abs(drawing.clientWidth - width) < 2) return;
    width = drawing.clientWidth;
    draw();
  });
  observer.observe(drawing);
  return ({ layer, head }) => {
    const name = `${layer}:${head}`;
    if (graph.nodes.has(name)) graph.choose(name);
  };
}

// The strongest edges between heads, and the edges into the logits of these heads and of a few others.
function drawnEdges({ heads, edges, always }, count) {
  const all = edges.map(([start, end, side, strength]) => ({
    start: heads[start][0],
    end: heads[end][0],
    side,
    strength,
    trunk: side === "logit" ? `${side} ${strength < 0}` : `${start} ${side} ${strength < 0}`,
  }));
  const between = all.filter(({ side }) => side !== "logit").slice(0, count);
  const drawn = new Set(between.flatMap(({ start, end }) => [start, end]));
  const into = all.filter(({ side }) => side === "logit");
  return [...between, ...into.filter(({ start }, i) => i < always || drawn.has(start))];
}

const textOf = ({ start, end, side, strength }) =>
  `${start} → ${SIDES[side].text}${end} ${fixed(strength, 2)}`;

class Graph {
  constructor(container, edges, { heads, measure }) {
    this.edges = edges;
    this.chosen = null;
    this.strongest = Math.max(...edges.map(({ strength }) => Math.abs(strength))) || 1;
    const named = new Set(edges.flatMap(({ start, end }) => [start, end]));
    const shown = heads.filter(([name]) => named.has(name));
    const titles = [...new Set(shown.map(([, title]) => title))];
    const rows = titles.map((title) => shown.filter(([, other]) => other === title).map(([name]) => name));
    const outer = Math.max(280, container.clientWidth);
    const isNarrow = outer < NARROW;
    const longest = Math.max(0, ...[...named].filter((name) => name !== "logits").map((name) => name.length));
    const down = Math.min(MOST_DOWN, Math.max(LEAST_DOWN, (innerHeight - ABOVE_AND_BELOW) / rows.length));
    const { height: nodeHeight, text } = down < LEAST_FOR_LARGE || isNarrow ? SMALL : LARGE;
    this.nodeHeight = nodeHeight;
    this.nodeWidth = Math.max((isNarrow ? 3.2 : 4) * text, 0.62 * text * longest + 8);
    const labels = isNarrow ? 26 : 66;
    const layout = layeredLayout(rows, edges, {
      width: outer - labels,
      nodeWidth: (name) => (name === "logits" ? 2 : 1) * this.nodeWidth,
    });
    const height = TOP + nodeHeight + (rows.length - 1) * down + BOTTOM;
    const yOf = (row) => height - BOTTOM - nodeHeight / 2 - row * down;
    this.nodes = new Map();
    rows.forEach((names, row) => {
      const sorted = [...names].sort((one, other) => layout.xOf.get(one) - layout.xOf.get(other));
      for (const name of sorted) {
        const width = (name === "logits" ? 2 : 1) * this.nodeWidth;
        this.nodes.set(name, { name, row, x: labels + layout.xOf.get(name), y: yOf(row), width });
      }
    });
    const svg = makeSvg("svg", {
      viewBox: `0 0 ${labels + layout.width} ${height}`,
      width: labels + layout.width,
      height,
      "font-size": text,
      role: "group",
      class: "graph",
      "aria-label": `Heads in rows of layers, with an arrow for each edge; width: ${measure}. Arrow keys move to another head.`,
    });
    titles.forEach((title, row) => {
      const label = isNarrow ? title.replace(/^layer /, "").replace("logits", "") : title;
      svg.append(makeSvg("line", { class: "row-line", x1: labels, x2: labels + layout.width, y1: yOf(row), y2: yOf(row) }));
      svg.append(makeSvg("text", { x: 0, y: yOf(row), dy: "0.35em", class: "row" }, label));
    });
    const routes = layout.routes.map((route) => route.map((x) => labels + x));
    const ports = this.portsOf(routes);
    // The strongest edges are on top, and arrows on top of all lines.
    const order = [...edges.keys()].sort((one, other) => Math.abs(edges[one].strength) - Math.abs(edges[other].strength));
    const drawn = order.map((i) => this.makeEdge(edges[i], routes[i], ports[i], yOf));
    svg.append(...drawn.map(([line]) => line), ...drawn.map(([, arrow]) => arrow));
    this.labels = makeSvg("g", { class: "numbers", "aria-hidden": "true" });
    for (const node of this.nodes.values()) svg.append(this.makeNode(node));
    svg.append(this.labels);
    svg.addEventListener("pointerleave", () => this.isolate(this.chosen));
    svg.addEventListener("keydown", (event) => this.onKey(event));
    const [first] = this.nodes.values();
    if (first) first.mark.setAttribute("tabindex", 0);
    container.replaceChildren(svg);
  }

  // The place of each edge's ends on the boxes: leaving in the order in which edges continue, and arriving by side.
  portsOf(routes) {
    const spread = (keyOf, routeEnd) => {
      const byNode = new Map();
      this.edges.forEach((edge, i) => {
        const key = keyOf(edge);
        if (key === null) return;
        if (!byNode.has(key)) byNode.set(key, new Set());
        byNode.get(key).add(routeEnd(edge, i));
      });
      const sorted = new Map(Array.from(byNode, ([key, ends]) => [key, [...ends].sort((one, other) => one - other)]));
      return (edge, i) => {
        const ends = sorted.get(keyOf(edge));
        return ((ends.indexOf(routeEnd(edge, i)) + 0.5) / ends.length - 0.5) * 0.8;
      };
    };
    const isDirect = (i) => routes[i].length === 2;
    const leaving = spread(
      ({ start }) => start,
      ({ side }, i) => routes[i][1] + (isDirect(i) ? SIDES[side].port * this.nodeWidth : SIDES[side].port),
    );
    const arriving = spread(
      ({ end, side }) => (side === "logit" ? end : null),
      (_, i) => routes[i].at(-2),
    );
    return this.edges.map((edge, i) => ({
      start: leaving(edge, i) * this.nodes.get(edge.start).width,
      end: (edge.side === "logit" ? arriving(edge, i) : SIDES[edge.side].port) * this.nodes.get(edge.end).width,
    }));
  }

  makeEdge(edge, route, ports, yOf) {
    const { row } = this.nodes.get(edge.start);
    const half = this.nodeHeight / 2;
    const end = route.length - 1;
    const width = THINNEST + ((THICKEST - THINNEST) * Math.abs(edge.strength)) / this.strongest;
    const size = 3 + width / 2;
    let x = route[0] + ports.start;
    let path = `M ${pixels(x)} ${pixels(yOf(row) - half)}`;
    for (let i = 1; i <= end; i++) {
      const to = i === end ? route[i] + ports.end : route[i];
      const [from, at] = [yOf(row + i - 1) - half, yOf(row + i) + half + (i === end ? ARROW : 0)];
      const middle = (from + at) / 2;
      path += ` C ${[x, middle, to, middle, to, at].map(pixels).join(" ")}`;
      // Straight past the boxes of the row.
      if (i < end) path += ` V ${pixels(yOf(row + i) - half)}`;
      x = to;
    }
    const tip = yOf(row + end) + half;
    const points = [[x - size, tip + ARROW + 1], [x, tip], [x + size, tip + ARROW + 1]];
    const sign = edge.strength < 0 ? " less" : "";
    const line = makeSvg(
      "g",
      { class: `edge of-${edge.side}${sign}` },
      ...strokesOf(edge.side, path, width),
      makeSvg("path", { class: "hit", d: path, "stroke-width": HIT_WIDTH }),
      makeSvg("title", {}, textOf(edge)),
    );
    const arrow = makeSvg("polygon", {
      class: `arrow of-${edge.side}${sign}`,
      points: points.map((point) => point.map(pixels).join()).join(" "),
    });
    line.addEventListener("pointerenter", () => this.isolateEdge(edge));
    Object.assign(edge, { line, arrow });
    return [line, arrow];
  }

  makeNode(node) {
    const { name, x, y, width } = node;
    const box = { x: x - width / 2, y: y - this.nodeHeight / 2, width, height: this.nodeHeight, rx: 5 };
    node.mark = makeSvg(
      "g",
      { class: "node", tabindex: -1, role: "button", "aria-pressed": false, "aria-label": this.spoken(name) },
      makeSvg("rect", box),
      makeSvg("text", { x, y, dy: "0.35em", "text-anchor": "middle" }, name),
    );
    if (name !== "logits") linkTo(node.mark, { head: name });
    node.mark.addEventListener("click", () => this.pick(name));
    node.mark.addEventListener("pointerenter", () => this.isolate(name));
    node.mark.addEventListener("focus", () => this.isolate(name));
    node.mark.addEventListener("blur", () => this.isolate(this.chosen));
    return node.mark;
  }

  spoken(name) {
    const fed = this.edges.filter(({ end }) => end === name).length;
    const feeds = this.edges.filter(({ start }) => start === name).length;
    return `${name === "logits" ? "" : "head "}${name}: ${fed} edges in, ${feeds} out`;
  }

  // Select a head, or deselect it.
  pick(name) {
    this.choose(this.chosen === name ? null : name);
    if (this.chosen) openSheet();
  }

  choose(name) {
    this.chosen = name;
    for (const [other, { mark }] of this.nodes) mark.setAttribute("aria-pressed", other === name);
    this.isolate(name);
  }

  // Leave the edges of a head, and number its neighbours; null shows all edges.
  isolate(name) {
    const isOfNode = ({ start, end }) => start === name || end === name;
    this.fade(name === null ? null : this.edges.filter(isOfNode), name);
    const readout = byId("readout");
    if (name === null) return readout.replaceChildren(hint());
    const list = (title, edges, other) =>
      edges.length
        ? [make("span", { class: "graph-edges" }, make("b", { text: title }), ...edges.map((edge) => edgeItem(edge, other(edge), this.strongest)))]
        : [];
    const sorted = [...this.edges].sort((one, another) => Math.abs(another.strength) - Math.abs(one.strength));
    readout.replaceChildren(
      make("b", { text: name === "logits" ? "The logits" : `Head ${name}` }),
      ...list("fed by", sorted.filter(({ end }) => end === name), ({ start, side }) => `${start}${side === "logit" ? "" : ` ${SIDES[side].name}`}`),
      ...list("feeds", sorted.filter(({ start }) => start === name), ({ end, side }) => `${SIDES[side].text}${end}`),
    );
  }

  isolateEdge(edge) {
    this.fade([edge], null);
    byId("readout").replaceChildren(textOf(edge));
  }

  fade(edges, name) {
    const left = edges && new Set(edges);
    const ends = new Set((edges ?? []).flatMap(({ start, end }) => [start, end]));
    for (const edge of this.edges) {
      for (const part of [edge.line, edge.arrow]) part.classList.toggle("faint", left !== null && !left.has(edge));
    }
    for (const [other, { mark }] of this.nodes) mark.classList.toggle("faint", left !== null && !ends.has(other) && other !== name);
    this.labels.replaceChildren(...(edges ? [...this.numbers(edges, name)] : []));
  }

  // The number of the strongest edge to each neighbour: above a box that it leaves, below one that it enters.
  *numbers(edges, name) {
    for (const [other, { x, y }] of this.nodes) {
      const own = edges.filter(({ start, end }) => (name === null ? end === other : other !== name && (start === other || end === other)));
      if (!own.length) continue;
      const strongest = own.reduce((best, edge) => (Math.abs(edge.strength) > Math.abs(best.strength) ? edge : best));
      const more = own.length > 1 ? ` +${own.length - 1}` : "";
      const text = `${SIDES[strongest.side].letter} ${fixed(strongest.strength, 2)}${more}`;
      const below = strongest.end === other;
      yield makeSvg("text", { x, y: y + (below ? this.nodeHeight / 2 + 17 : -this.nodeHeight / 2 - 6), "text-anchor": "middle" }, text.trim());
    }
  }

  onKey(event) {
    const node = [...this.nodes.values()].find(({ mark }) => mark === event.target.closest(".node"));
    if (!node) return;
    if (["Enter", " "].includes(event.key)) {
      event.preventDefault();
      return this.pick(node.name);
    }
    if (event.key === "Escape") return this.choose(null);
    const to = this.neighbour(node, event.key);
    if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    node.mark.setAttribute("tabindex", -1);
    to.mark.setAttribute("tabindex", 0);
    to.mark.focus();
  }

  neighbour({ row, x, name }, key) {
    const nodes = [...this.nodes.values()];
    if (key === "Home") return nodes[0];
    if (key === "End") return nodes.at(-1);
    const side = { ArrowLeft: -1, ArrowRight: 1 }[key];
    const own = nodes.filter((other) => other.row === row);
    if (side) return own[own.findIndex((other) => other.name === name) + side];
    const up = { ArrowUp: 1, ArrowDown: -1 }[key];
    const near = nodes.filter((other) => up && other.row === row + up);
    return near.sort((one, other) => Math.abs(one.x - x) - Math.abs(other.x - x))[0];
  }
}

const pixels = (number) => Number(number.toFixed(1));
const hint = () => make("span", { class: "quiet", text: "Point at a head, or focus it, to see what it feeds and what feeds it; click to keep it." });

// The strokes of an edge: one line for keys, two for queries, dots for values.
function strokesOf(side, d, width) {
  if (side === "query") {
    const outer = width + 1.5;
    return [
      makeSvg("path", { class: "stroke", d, "stroke-width": pixels(outer) }),
      makeSvg("path", { class: "inner", d, "stroke-width": pixels(Math.max(1, outer / 3)) }),
    ];
  }
  const stroke = makeSvg("path", { class: "stroke", d, "stroke-width": pixels(width) });
  if (side === "value") stroke.style.strokeDasharray = `0 ${pixels(width * 1.7)}`;
  return [stroke];
}

function edgeItem({ side, strength }, text, strongest) {
  const bar = make("span", { class: `bar of-${side}`, "aria-hidden": "true" });
  bar.style.width = `${(100 * Math.abs(strength)) / strongest}%`;
  return make("span", { class: "graph-edge" }, bar, make("span", { text }), " ", make("span", { class: "number", text: fixed(strength, 2) }));
}

// What colour, stroke and width mean.
function fillLegend(legend, { edges, strongest }, measure) {
  const keys = Object.entries(SIDES).filter(([side]) => edges.some((edge) => edge.side === side));
  const key = (side, text, width, isLess) => make("span", { class: "graph-key" }, sample(side, width, isLess), text);
  legend.replaceChildren(
    ...keys.map(([side, { letter, name }]) => key(side, `${letter} ${name}`.trim(), 4)),
    ...(edges.some(({ strength }) => strength < 0) ? [key("logit", "dashed: negative", 3, true)] : []),
    make("span", {}, `width: ${measure}, from `, make("span", { class: "graph-key" }, "0", sample("logit", THINNEST), "to", sample("logit", THICKEST), fixed(strongest, 2))),
  );
}

function sample(side, width, isLess) {
  const group = makeSvg("g", { class: `edge of-${side}${isLess ? " less" : ""}` }, ...strokesOf(side, "M 1 6 H 29", width));
  return makeSvg("svg", { class: "graph-sample", viewBox: "0 0 30 12", width: 30, height: 12, "aria-hidden": "true" }, group);
}
