// A logit as a sum: a row per layer with the contribution of each of its heads as a coloured cell and, beside them,
// the sum so far, to which the heads and then the MLP of each layer add. The sum of all parts is the logit.

import { byId, make } from "attn/parts/elements.js";
import { headCell, moveWithArrows } from "attn/parts/head_cells.js";
import { shadingOf, showLegend } from "attn/values/colours.js";
import { fixed } from "attn/values/numbers.js";
import { axisOf, tickText } from "attn/values/ticks.js";

const [LEAST_ROW, MOST_ROW, ELSEWHERE] = [17, 84, 330]; // pixels
const LEAST_WITH_NUMBER = 42; // pixels across a cell
const STEPS = 5;
const UNIT = "contribution to the logit";

// Returns the function that focuses a head, given its layer and number.
export function show(container, { statistics }) {
  const { heads, layers, parts } = statistics;
  const total = (numbers) => numbers.reduce((sum, number) => sum + (number ?? 0), 0);
  const rows = [{ name: "embedding", sums: [["embedding", parts.embedding]] }];
  for (const layer of layers) {
    const own = heads.filter((head) => head.layer === layer.layer).sort((one, other) => one.head - other.head);
    const attention = layer.attention ?? total(own.map(({ contribution }) => contribution));
    rows.push({ name: `layer ${layer.layer}`, own, sums: [["heads", attention], ["MLP", layer.mlp]] });
  }
  rows.push({ name: "biases", sums: [["biases", parts.biases]] });
  let sum = 0;
  for (const row of rows) {
    row.steps = row.sums.map(([name, number]) => ({ name, number, from: sum, to: (sum += number) }));
  }
  const ends = rows.flatMap(({ steps }) => steps.map(({ to }) => to));
  const axis = axisOf(Math.min(0, ...ends), Math.max(0, ...ends), STEPS);
  const shareOf = (number) => (100 * (number - axis.low)) / (axis.high - axis.low);
  const most = Math.max(...heads.map(({ contribution }) => Math.abs(contribution ?? 0)));
  const shading = shadingOf({ low: -most, high: most, above: 0 }, "linear", false);
  const numHeads = Math.max(0, ...heads.map(({ head }) => head)) + 1;
  const [cells, sorted] = [[], []];
  const body = make("tbody");
  for (const { name, own, steps } of rows) {
    const line = make("tr", {}, make("th", { scope: "row", text: name }));
    let next = 0;
    const skipTo = (end) => end > next && line.append(make("td", { colspan: end - next }));
    for (const head of own ?? []) {
      skipTo(head.head);
      cells.push(cellOf(head, shading));
      sorted.push(head);
      line.append(cells.at(-1));
      next = head.head + 1;
    }
    skipTo(numHeads);
    const track = make("div", { class: "track" }, ...gridLines(axis, shareOf), ...steps.map((step) => barOf(step, shareOf)));
    const said = steps.map((step) => `${steps.length > 1 ? `${step.name} ` : ""}${signed(step.number)}`).join(", ");
    line.append(make("td", { class: "sum", title: said }, track, make("span", { class: "said", text: said })));
    line.addEventListener("pointerenter", () => tell(`${name}: ${said}; sum so far ${fixed(steps.at(-1).to, 2)}`));
    body.append(line);
  }
  body.append(lastRow(parts.logit, numHeads, shareOf, axis));
  const ticks = axis.ticks.map((tick) => placed(make("span", { text: tickText(tick, axis.step) }), shareOf(tick)));
  const head = make(
    "thead",
    {},
    make(
      "tr",
      {},
      make("th", { scope: "col", text: "head" }),
      ...Array.from({ length: numHeads }, (_, i) => make("th", { scope: "col", text: i })),
      make("th", { scope: "col", class: "sum" }, make("div", { class: "track", "aria-hidden": "true" }, make("div", { class: "ticks" }, ...ticks)), make("span", { class: "said", text: "adds" })),
    ),
  );
  const caption = make("caption", { text: "The contribution of each head to the logit, and the sum so far" });
  const table = make("table", {}, caption, head, body);
  const legend = make("span", { class: "legend" });
  showLegend(legend, shading, { decimals: 2, unit: UNIT });
  const keys = [["heads", "heads of a layer"], ["MLP", "its MLP"]];
  const keyOf = ([kind, text]) => make("span", { class: "logit-key" }, make("span", { class: `bar more of-${kind}` }), text);
  container.replaceChildren(make("div", { class: "controls" }, legend, make("span", { class: "logit-key", text: "Bars add to the sum so far:" }), ...keys.map(keyOf)), make("div", { class: "logit-box" }, table));
  moveWithArrows(cells, sorted);
  const fit = () => {
    const height = (innerHeight - ELSEWHERE) / (rows.length + 1);
    table.style.setProperty("--row", `${Math.max(LEAST_ROW, Math.min(MOST_ROW, height))}px`);
    table.classList.toggle("small", (cells[0]?.clientWidth ?? 0) < LEAST_WITH_NUMBER);
  };
  fit();
  const observer = new ResizeObserver(() => (table.isConnected ? fit() : observer.disconnect()));
  observer.observe(container);
  return ({ layer, head: number }) => cells[sorted.findIndex((row) => row.layer === layer && row.head === number)]?.focus();
}

const signed = (number) => `${number > 0 ? "+" : ""}${fixed(number, 2)}`;
const tell = (text) => (byId("readout").textContent = text);

function placed(element, share, width) {
  element.style.left = `${share}%`;
  if (width !== undefined) element.style.width = `${width}%`;
  return element;
}

function gridLines({ ticks }, shareOf) {
  return ticks.map((tick) => placed(make("span", { class: tick === 0 ? "line zero" : "line" }), shareOf(tick)));
}

function barOf({ name, number, from, to }, shareOf) {
  const bar = make("span", { class: `bar ${number < 0 ? "less" : "more"} of-${name}`, "aria-hidden": "true" });
  return placed(bar, shareOf(Math.min(from, to)), Math.abs(shareOf(to) - shareOf(from)));
}

function lastRow(logit, numHeads, shareOf, axis) {
  const bar = barOf({ name: "logit", number: logit, from: 0, to: logit }, shareOf);
  return make(
    "tr",
    { class: "total" },
    make("th", { scope: "row", text: "logit" }),
    make("td", { colspan: numHeads }),
    make("td", { class: "sum" }, make("div", { class: "track" }, ...gridLines(axis, shareOf), bar), make("span", { class: "said", text: fixed(logit, 2) })),
  );
}

function cellOf(head, shading) {
  const element = headCell(head, head.contribution, shading, fixed(head.contribution, 2));
  element.setAttribute("aria-label", textOf(head));
  for (const event of ["pointerenter", "focus"]) element.addEventListener(event, () => tell(textOf(head)));
  return element;
}

function textOf({ layer, head, pattern, contribution, key_token: token, key_weight: weight }) {
  const looks = token && typeof weight === "number" ? `, looks at ${token} with weight ${fixed(weight, 2)}` : "";
  return `head ${layer}:${head} (${pattern}): ${signed(contribution)}${looks}`;
}
