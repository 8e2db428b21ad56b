// All heads as a small grid, one row per layer: tiny maps, or colours of the statistic by which heads are sorted.
// Calls `onPick` with the number of a head, and whether shift was held, and `onPoint` with the head under the pointer. The list of thumbnails has the same heads
// for keyboards and screen readers.

import { highestOn, make } from "./elements.js";
import { endsOf, placeIn, shadingOf, showLegend } from "../values/colours.js";
import { placeText, shortPlace } from "../values/labels.js";
import { scalar } from "../values/numbers.js";

// Fewer heads than this need no overview beside their thumbnails.
const LEAST_HEADS = 17;
const [LABEL_PIXELS, LABEL_WIDTH, LABEL_HEIGHT] = [12, 24, 16];
const LARGEST_GRID_CELL = 32;
// Share of the height of the overview for a grid above the thumbnails.
const SHARE_ABOVE = 0.55;
// With this many more layers than heads in a layer, the grid is placed beside the thumbnails.
const TALL = 1.5;
const FAINT = 0.25;
const [LEAST_OVERVIEW, LINE_BELOW] = [340, 28];

export class HeadGrid {
  constructor(container, onPick) {
    this.box = make("div", { class: "heads" });
    container.replaceWith(this.box);
    this.onPoint = () => {};
    this.canvas = make("canvas");
    this.frame = make("div", { class: "frame", hidden: "" });
    this.pointed = make("div", { class: "frame pointed", hidden: "" });
    this.cells = make("div", { class: "grid-cells" }, this.canvas, this.pointed, this.frame);
    this.rows = make("div", { class: "grid-rows" });
    this.columns = make("div", { class: "grid-columns" });
    this.legend = make("div", { class: "legend" });
    this.said = make("div", { class: "grid-said quiet" });
    this.grid = make("div", { class: "head-grid", "aria-hidden": "true" });
    this.grid.append(this.columns, this.rows, this.cells, this.said, this.legend);
    this.box.append(this.grid, container);
    this.cells.addEventListener("pointermove", (event) => this.point(this.itemAt(event)));
    this.cells.addEventListener("pointerleave", () => this.point(null));
    this.cells.addEventListener("click", (event) => {
      const item = this.itemAt(event);
      if (item) onPick(item.number, event.shiftKey);
    });
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  show(items, { leadingShape, count }) {
    this.numColumns = leadingShape.at(-1) ?? 1;
    this.numRows = count / this.numColumns;
    this.items = new Map(items.map((item) => [item.number, item]));
    this.isDrawn = false; // the thumbnails move when the grid has its size
    this.grid.hidden = items.length < LEAST_HEADS;
    const isTall = !this.grid.hidden && this.numRows > TALL * this.numColumns;
    this.box.classList.toggle("tall", isTall);
    this.box.classList.toggle("listed", this.grid.hidden);
    this.fit();
  }

  // Colours of a statistic, a map from items to numbers, or tiny maps if it is null; heads not in `shown` are faint.
  rank(label, values, shown) {
    Object.assign(this, { label, values, shown: new Set(shown) });
    this.shading = null;
    if (values) {
      const numbers = Array.from(values.values(), (value) => value ?? NaN);
      const ends = endsOf(numbers, numbers.length, 0);
      this.shading = shadingOf(ends, "linear", ends.low >= 0);
    }
    this.draw();
  }

  // Let the grid and the thumbnails end with the first screen, and return their height.
  fit() {
    const usual = Math.max(LEAST_OVERVIEW, 0.6 * innerHeight);
    const most = highestOn(this.box, LEAST_OVERVIEW, usual) - LINE_BELOW;
    this.box.style.maxHeight = `${most}px`;
    return most;
  }

  // At most once per frame.
  draw() {
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    if (!this.items || !this.box.clientWidth) return;
    const most = this.fit();
    if (this.grid.hidden) return;
    const isTall = this.box.classList.contains("tall");
    const height = most * (isTall ? 1 : SHARE_ABOVE) - LABEL_HEIGHT - 44;
    const width = this.box.clientWidth * (isTall ? 0.62 : 1) - LABEL_WIDTH;
    this.pixels = Math.max(4, Math.min(LARGEST_GRID_CELL, width / this.numColumns, height / this.numRows));
    const [across, down] = [this.numColumns, this.numRows].map((count) => count * this.pixels);
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.round(across * ratio), height: Math.round(down * ratio) });
    Object.assign(this.cells.style, { width: `${across}px`, height: `${down}px` });
    const context = this.canvas.getContext("2d");
    const cell = (this.pixels - 1) * ratio;
    for (const item of this.items.values()) {
      const { left, top } = this.placeOf(item.number);
      context.globalAlpha = this.shown?.has(item) === false ? FAINT : 1;
      if (!this.shading) context.drawImage(item.canvas, left * ratio, top * ratio, cell, cell);
      else {
        const value = this.values.get(item);
        context.fillStyle = Number.isFinite(value) ? this.colourOf(value) : "transparent";
        context.fillRect(left * ratio, top * ratio, cell, cell);
      }
    }
    this.showLabels();
    this.legend.hidden = !this.shading;
    if (this.shading) showLegend(this.legend, this.shading, { unit: this.label });
    this.mark(this.number);
    if (!this.isDrawn) this.onDrawn();
    this.isDrawn = true;
  }

  colourOf(value) {
    const place = Math.max(0, Math.min(1, placeIn(this.shading, value)));
    const colour = this.shading.map[Math.round(place * 255)];
    return `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
  }

  showLabels() {
    const label = (text, edge, at) => {
      const element = make("span", { text });
      element.style[edge] = `${(at + 0.5) * this.pixels}px`;
      return element;
    };
    const every = (count, needed) => {
      const step = Math.max(1, Math.ceil(needed / this.pixels));
      return Array.from({ length: Math.ceil(count / step) }, (_, i) => i * step);
    };
    const nameOf = (row) => {
      const [item] = [...this.items.values()].filter(({ number }) => Math.floor(number / this.numColumns) === row);
      return item ? shortPlace(item.place.slice(0, -1)) : "";
    };
    this.rows.replaceChildren(...every(this.numRows, LABEL_PIXELS).map((row) => label(nameOf(row), "top", row)));
    const columns = every(this.numColumns, 1.5 * LABEL_PIXELS);
    this.columns.replaceChildren(...columns.map((column) => label(String(column), "left", column)));
  }

  placeOf(number) {
    const row = Math.floor(number / this.numColumns);
    return { left: (number % this.numColumns) * this.pixels, top: row * this.pixels };
  }

  itemAt(event) {
    const box = this.cells.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.pixels);
    const row = Math.floor((event.clientY - box.top) / this.pixels);
    if (column < 0 || column >= this.numColumns) return null;
    return this.items.get(row * this.numColumns + column) ?? null;
  }

  point(item) {
    this.frameAt(this.pointed, item?.number);
    this.onPoint(item);
    const value = item && this.shading ? `: ${this.label} ${scalar(this.values.get(item))}` : "";
    this.said.textContent = item ? `${placeText(item.place)}${value}` : "";
  }

  // Frame the chosen head.
  mark(number) {
    this.number = number;
    this.frameAt(this.frame, number);
  }

  frameAt(frame, number) {
    frame.hidden = !this.pixels || number === undefined;
    if (frame.hidden) return;
    const { left, top } = this.placeOf(number);
    const size = `${this.pixels + 1}px`;
    Object.assign(frame.style, { left: `${left - 1}px`, top: `${top - 1}px`, width: size, height: size });
  }
}
