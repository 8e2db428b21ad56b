// Queries and keys side by side, with attention as lines or as shades. Calls `onLook` when a token is hovered,
// `onPin` when one is selected, `onAllHeads` and `onSwitchHeads` when heads are switched on or off.

import { columnsOf, make, makeToken, moved } from "./elements.js";
import { HeadKeys } from "./head_keys.js";
import { drawAll, drawSources, penOn, signsOfViews } from "./lines.js";
import { linkTo } from "./linked.js";
import { fixed } from "../values/numbers.js";
import { bandsOf, colourOf, FAINTEST, inkOf, sizesOf, strengthsOf } from "../values/shades.js";

const MOST_TOKENS_WITH_LINES = 64;
// Colours of selected tokens, in this order.
export const PIN_COLOURS = ["pin-0", "pin-1", "pin-2", "pin-3", "pin-4", "pin-5"];

export class TokenSides {
  constructor(container) {
    this.container = container;
    this.switch = make("button", { type: "button" });
    this.allHeads = make("button", { type: "button" });
    this.clear = make("button", { type: "button", text: "Clear selection" });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.lists = { query: this.makeList("query"), key: this.makeList("key") };
    this.sides = make("div", { class: "sides" });
    this.sides.append(this.lists.query.box, this.canvas, this.lists.key.box);
    container.append(make("div", { class: "controls" }, this.switch, this.allHeads, this.clear));
    this.headKeys = new HeadKeys(container, (heads) => this.onSwitchHeads(heads));
    container.append(this.sides);
    this.switch.addEventListener("click", () => this.toggle());
    this.allHeads.addEventListener("click", () => this.onAllHeads());
    this.sides.addEventListener("pointerleave", () => this.onLook(null));
    new ResizeObserver(() => this.drawLines()).observe(this.sides);
  }

  makeList(side) {
    const name = side === "query" ? "queries" : "keys";
    const said = { query: "queries: look at keys", key: "keys: looked at" }[side];
    const heading = make("h3", { text: said });
    const list = make("div", { class: "token-list", role: "group", "aria-label": name });
    const box = make("div", { class: `side ${name}` }, heading, list);
    list.addEventListener("pointerover", (event) => this.lookAt(event.target));
    list.addEventListener("focusin", (event) => this.lookAt(event.target));
    list.addEventListener("focusout", () => this.onLook(null));
    list.addEventListener("click", (event) => {
      const token = event.target.closest(".token");
      if (token) this.onPin({ side, index: Number(token.dataset.index) });
    });
    list.addEventListener("keydown", (event) => this.onKey(event, side));
    return { side, box, list, elements: [] };
  }

  show({ query, key }) {
    const most = Math.max(query.length, key.length);
    this.isText = this.chosen ?? most > MOST_TOKENS_WITH_LINES;
    for (const [side, labels] of [
      ["query", query],
      ["key", key],
    ])
      this.fill(this.lists[side], labels);
    this.showMode();
  }

  fill(list, labels) {
    list.images = labels.map(() => "");
    list.weights = labels.map(() => document.createTextNode(""));
    list.elements = labels.map(({ position, token }, index) => {
      const element = make("button", { class: "token", type: "button", tabindex: index ? "-1" : "0" });
      element.dataset.index = index;
      element.dataset.side = list.side;
      linkTo(element, { [list.side]: position });
      const weight = make("span", { class: "weight" }, list.weights[index]);
      element.append(make("span", { class: "position", text: position }), makeToken(token), weight);
      return element;
    });
    list.list.replaceChildren(...list.elements);
  }

  toggle() {
    this.chosen = !this.isText;
    this.isText = this.chosen;
    this.showMode();
    this.drawLines();
  }

  showMode() {
    this.switch.textContent = this.isText ? "Show as lines" : "Show as text";
    this.sides.classList.toggle("as-text", this.isText);
  }

  lookAt(target) {
    const token = target.closest(".token");
    if (token) this.onLook({ side: token.dataset.side, index: Number(token.dataset.index) });
  }

  onKey(event, side) {
    const { elements } = this.lists[side];
    const index = elements.indexOf(event.target.closest(".token"));
    const to = moved(event, index, elements.length, this.isText ? columnsOf(elements) : 1);
    if (index < 0 || to === null) return;
    event.preventDefault();
    elements[index].tabIndex = -1;
    elements[to].tabIndex = 0;
    elements[to].focus();
  }

  // Draw shades, weights and lines for the selected tokens (`sources`), each with a query, a key or both, and a
  // colour. Numbers come from `matrix`; shades and lines from `views`, matrices with one ink each if several.
  draw(matrix, views, sources, { areAllHeads }) {
    Object.assign(this, { matrix, views, sources });
    this.shade(this.lists.key, (source, from) => source.query !== null && from.row(source.query));
    this.shade(this.lists.query, (source, from) => source.key !== null && from.column(source.key));
    for (const { elements, side } of Object.values(this.lists)) {
      const shown = new Set(sources.map((source) => source[side]));
      const kept = new Set(
        sources.filter((source) => source.isPinned && source.side === side).map(({ index }) => index),
      );
      elements.forEach((element, index) => {
        element.ariaPressed = kept.has(index);
        element.classList.toggle("source", shown.has(index));
      });
    }
    this.sides.classList.toggle("of-many", views.length > 1);
    this.sides.classList.toggle("of-layer", areAllHeads);
    this.clear.disabled = !sources.some(({ isPinned }) => isPinned);
    this.drawLines();
  }

  // Show the buttons of a layer's heads. `isOn` if all heads are drawn.
  showHeads(heads, { layer, isOn, source }) {
    this.allHeads.hidden = heads.length < 2;
    this.allHeads.textContent = `All heads${layer ? ` of ${layer}` : ""}`;
    this.allHeads.ariaPressed = isOn;
    this.headKeys.show(isOn ? heads : [], source);
  }

  // One band per source and view behind every token; opacity follows the weight.
  shade(list, numbersOf) {
    const { views, sources } = this;
    const signs = signsOfViews(views);
    const bands = sources.flatMap((source) => {
      const none = new Float64Array(list.elements.length);
      const lines = views.map(({ matrix }) => numbersOf(source, matrix) || none);
      const sizes = lines.map((numbers, k) =>
        sizesOf(numbers, { skip: list.side === "key" ? views[k].matrix.skip : 0 }),
      );
      return strengthsOf(sizes, this.matrix.isLog).map((strengths, k) => ({
        strengths,
        numbers: lines[k],
        ink: views[k].ink ?? colourOf(source.colour),
      }));
    });
    const direction = views.length > 1 ? "right" : "bottom";
    const numbers = sources.length && numbersOf(sources.at(-1), this.matrix);
    list.elements.forEach((element, index) => {
      const shares = bands.map(({ strengths }) => strengths[index]);
      const inks = bands.map(({ numbers: line, ink }) => inkOf(line[index], ink, signs));
      const image = shares.some((share) => share > FAINTEST) ? bandsOf(shares, inks, direction) : "";
      if (list.images[index] !== image) element.style.backgroundImage = image;
      list.images[index] = image;
      list.weights[index].data = numbers ? fixed(numbers[index], this.matrix.decimals) : "";
    });
  }

  drawLines() {
    if (!this.matrix || !this.canvas.offsetParent || this.isText) return;
    const pen = penOn(this.canvas, this.lists);
    if (this.sources.length) drawSources(pen, this.views, this.sources);
    else if (pen.from.length <= MOST_TOKENS_WITH_LINES) drawAll(pen, this.views);
  }
}
