// One matrix as a map with labels on two sides. Calls `onCell` for the cell under the pointer or the arrow keys,
// and `onPick` on a click or Enter.

import { ARROWS, make, makeToken } from "./elements.js";
import { linkTo } from "./linked.js";
import { isLight, paint } from "../values/colours.js";
import { shortened } from "../values/labels.js";
import { fixed } from "../values/numbers.js";

const LABEL_PIXELS = 15;
const MOST_ROWS_WITH_LABELS = 40;
const LARGEST_CELL = 96;
const LARGEST_HEIGHT = 680;

export class MatrixMap {
  constructor(container) {
    this.corner = make("div", { class: "map-corner quiet" });
    this.top = make("div", { class: "map-top", "aria-hidden": "true" });
    this.left = make("div", { class: "map-left", "aria-hidden": "true" });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.numbers = make("div", { class: "map-numbers", "aria-hidden": "true" });
    this.marks = make("div", { class: "map-marks", "aria-hidden": "true" });
    this.rowFrame = make("div", { class: "frame" });
    this.columnFrame = make("div", { class: "frame" });
    this.cells = make("div", { class: "map-cells", tabindex: "0", role: "application" });
    this.cells.append(this.canvas, this.numbers, this.marks, this.rowFrame, this.columnFrame);
    this.container = container;
    this.parts = container.closest(".parts");
    container.append(this.corner, this.top, this.left, this.cells);
    this.cells.addEventListener("pointermove", (event) => this.look(...this.cellAt(event)));
    this.cells.addEventListener("pointerleave", () => this.look(null));
    this.cells.addEventListener("blur", () => this.look(null));
    this.cells.addEventListener("focus", () => this.lookByKey(this.cell ?? [0, 0]));
    this.cells.addEventListener("click", (event) => this.onPick(this.cellAt(event)));
    this.cells.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.layout()).observe(this.parts);
  }

  show(matrix) {
    this.matrix = matrix;
    this.cell = null;
    const [rowAxis, columnAxis] = matrix.axes.map((axis) => axis.replace("_", " "));
    this.corner.textContent = `${rowAxis} ↓ ${columnAxis} →`;
    const size = `${matrix.rows} × ${matrix.columns}`;
    this.cells.setAttribute(
      "aria-label",
      `Map of ${matrix.title}, ${size}; arrow keys move to a cell, Enter selects it`,
    );
    this.pixels = paint(this.canvas, matrix.values, matrix.columns, matrix.shading, matrix.skip);
    this.mark(null, null);
    this.showMarks();
    this.layout();
  }

  // Frames around marked cells; dashed if the mark was not confirmed.
  showMarks() {
    const { rows, columns, marks } = this.matrix;
    this.marks.style.gridTemplate = `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)`;
    this.marks.replaceChildren(
      ...marks.map(([row, column, isHit]) => {
        const frame = make("span", { class: isHit ? "hit" : "missed" });
        frame.style.gridArea = `${row + 1} / ${column + 1}`;
        return frame;
      }),
    );
  }

  layout() {
    if (!this.matrix || !this.container.offsetParent) return;
    const { rows, columns } = this.matrix;
    const labelWidth = this.left.offsetWidth;
    const room = this.container.parentElement.clientWidth - labelWidth - 8;
    // Cells of token-by-token maps are square; other cells use the full width to show their numbers.
    const widest = this.matrix.isAttention ? Math.max(3, LARGEST_HEIGHT / rows) : LARGEST_CELL;
    this.width = Math.max(1, Math.min(LARGEST_CELL, room / columns, widest));
    const least = rows <= MOST_ROWS_WITH_LABELS ? LABEL_PIXELS + 1 : 0;
    const highest = Math.max(240, Math.min(LARGEST_HEIGHT, innerHeight - 260));
    this.height = Math.min(Math.max(this.width, least), 0.75 * LARGEST_CELL);
    if (this.height * rows > highest) this.height = Math.max(highest / rows, Math.min(least, LARGEST_HEIGHT / rows));
    if (columns > room) this.width = room / columns;
    this.cells.style.width = `${this.width * columns}px`;
    this.cells.style.height = `${this.height * rows}px`;
    this.canvas.classList.toggle("enlarged", this.width >= 1 && this.height >= 1);
    this.showLabels(this.top, this.matrix.columnLabels, this.width, "gridColumn", "gridTemplateColumns");
    this.showLabels(this.left, this.matrix.rowLabels, this.height, "gridRow", "gridTemplateRows");
    this.top.style.width = this.cells.style.width;
    this.left.style.height = this.cells.style.height;
    if (this.left.offsetWidth !== labelWidth && !this.again) {
      this.again = true; // the labels need more room now
      this.layout();
      this.again = false;
    }
    this.showNumbers();
  }

  // As many labels as fit.
  showLabels(side, labels, pixels, property, template) {
    const step = Math.max(1, Math.ceil(LABEL_PIXELS / pixels));
    side.style[template] = `repeat(${labels.length}, minmax(0, 1fr))`;
    const shown = [];
    for (let i = 0; i === 0 || i + step / 2 < labels.length; i += step) {
      const { position, token } = labels[i];
      const label = make("span", { class: "label" }, make("span", { class: "position", text: position }));
      if (token) label.append(" ", makeToken(shortened(token)));
      linkTo(label, { [this.matrix.axes[side === this.top ? 1 : 0]]: position });
      label.style[property] = `${i + 1} / span ${Math.min(step, labels.length - i)}`;
      shown.push(label);
    }
    const longest = Math.max(...labels.map(({ position }) => position.length));
    side.classList.toggle("level", labels.every(({ token }) => !token) && longest * 7 + 2 <= step * pixels);
    side.replaceChildren(...shown);
  }

  // Numbers in the cells if they fit.
  showNumbers() {
    const { values, rows, columns, decimals } = this.matrix;
    const longest = Math.max(
      ...Array.from(values.subarray(0, 400), (value) => fixed(value, decimals).length),
    );
    const fits = values.length <= 400 && this.height >= 16 && this.width >= longest * 6.3 + 4;
    this.numbers.hidden = !fits;
    if (!fits) return;
    this.numbers.style.gridTemplate = `repeat(${rows}, 1fr) / repeat(${columns}, 1fr)`;
    this.numbers.replaceChildren(
      ...Array.from(values, (value, i) => {
        const tone = !this.pixels[i] ? "on-page" : isLight(this.pixels[i]) ? "on-light" : "on-dark";
        return make("span", { class: tone, text: fixed(value, decimals) });
      }),
    );
  }

  cellAt(event) {
    const box = this.cells.getBoundingClientRect();
    const { rows, columns } = this.matrix;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return [Math.max(0, Math.min(rows - 1, row)), Math.max(0, Math.min(columns - 1, column))];
  }

  look(row, column) {
    if (this.cell && row !== null && this.cell[0] === row && this.cell[1] === column) return;
    this.cell = row === null ? null : [row, column];
    this.mark(row, column);
    this.onCell(this.cell);
  }

  lookByKey([row, column]) {
    this.byKey = [row, column];
    if (this.cells.matches(":focus-visible")) this.look(row, column);
  }

  onKey(event) {
    const [row, column] = this.cell ?? this.byKey ?? [0, 0];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.onPick([row, column]);
      return;
    }
    const { rows, columns } = this.matrix;
    const isEnd = event.key === "Home" || event.key === "End";
    const arrow = ARROWS[event.key];
    if (!isEnd && !arrow) return;
    event.preventDefault();
    if (isEnd) this.look(row, event.key === "Home" ? 0 : columns - 1);
    else {
      const to = [row + arrow[1], column + arrow[0]];
      this.look(Math.max(0, Math.min(rows - 1, to[0])), Math.max(0, Math.min(columns - 1, to[1])));
    }
    this.byKey = this.cell;
  }

  // Frames around a row and a column; null removes them.
  mark(row, column) {
    const { rows, columns } = this.matrix;
    this.rowFrame.hidden = row === null;
    this.columnFrame.hidden = column === null;
    this.rowFrame.style.inset = `${(100 * row) / rows}% 0 ${100 - (100 * (row + 1)) / rows}% 0`;
    this.columnFrame.style.inset = `0 ${100 - (100 * (column + 1)) / columns}% 0 ${(100 * column) / columns}%`;
  }
}
