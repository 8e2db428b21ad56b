// One matrix as a map with labels on two sides, as large as its container allows. Ctrl and the wheel, two fingers,
// buttons and keys zoom; dragging zooms into a rectangle. Calls `onCell` for the cell under the pointer or the arrow
// keys, `onPick` on a click or Enter, `onLookAtLabel` and `onLabel` for a label, and `onView` when the person using
// this map zooms or scrolls.

import { ARROWS, highestOn, make, makeToken } from "./elements.js";
import { linkTo } from "./linked.js";
import { isLight, paint } from "../values/colours.js";
import { shortened } from "../values/labels.js";
import { fixed } from "../values/numbers.js";

const LARGEST_CELL = 96;
// Cells without tokens on both axes are at most this wide, and this high or this share of their width.
const [WIDEST_CELL, HIGHEST_CELL, HIGHEST_SHARE] = [190, 56, 1.4];
// The short side of a map with more than twice as many tokens on its other side has cells of this size.
const WIDE_CELL = 32;
// Cells of a map with fewer rows than columns are at most this share of their width high.
const TALL_SHARE = 1.5;
// Maps with smaller cells can be zoomed.
const READABLE_CELL = 30;
const ZOOM_STEP = 1.6;
const TOOLS_PIXELS = 34;
const [LONGEST_LEFT, LONGEST_LEFT_NARROW, LONGEST_TOP] = [150, 92, 104];
const NARROW = 500;
// Room for the small map beside the labels.
const LEAST_CORNER = 64;
const AXIS_FONT = 11;
const MOST_NUMBERS = 500;
// Fonts of labels and numbers in pixels, and the width of a digit in ems.
const LABEL_FONTS = [
  [56, 14],
  [15, 12],
  [0, 11],
];
const NUMBER_FONTS = [16, 14, 12, 11, 10];
const DIGIT = 0.6;
const DRAGGED = 5;
const LEAST_HEIGHT = 340;

const pen = make("canvas").getContext("2d");

export class MatrixMap {
  constructor(container) {
    this.axes = make("span", { class: "quiet" });
    this.small = make("canvas");
    this.window = make("div", { class: "window" });
    this.whole = make("div", { class: "small-map" }, this.small, this.window);
    this.corner = make("div", { class: "map-corner", "aria-hidden": "true" }, this.axes, this.whole);
    this.columnSide = sideOf("map-top");
    this.rowSide = sideOf("map-left");
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.numbers = make("div", { class: "map-numbers", "aria-hidden": "true" });
    this.marks = make("div", { class: "map-marks", "aria-hidden": "true" });
    this.rowFrame = make("div", { class: "frame", hidden: "" });
    this.columnFrame = make("div", { class: "frame", hidden: "" });
    this.brush = make("div", { class: "brush", hidden: "" });
    this.sheet = make("div", { class: "map-sheet" });
    this.sheet.append(this.canvas, this.numbers, this.marks, this.rowFrame, this.columnFrame, this.brush);
    this.cells = make("div", { class: "map-cells", tabindex: "0", role: "application" }, this.sheet);
    this.tools = this.makeTools();
    this.container = container;
    this.zoom = 0; // pixels of a cell; 0 for the whole map
    this.onView = () => {};
    container.append(this.corner, this.columnSide.box, this.rowSide.box, this.cells, this.tools);
    this.listen();
    new ResizeObserver(() => this.resize()).observe(container);
  }

  makeTools() {
    const button = (text, label, work) => {
      const element = make("button", { type: "button", "aria-label": label, title: label, text });
      element.addEventListener("click", work);
      return element;
    };
    this.less = button("−", "Zoom out", () => this.zoomBy(1 / ZOOM_STEP));
    this.more = button("+", "Zoom in", () => this.zoomBy(ZOOM_STEP));
    this.all = button("Whole map", "Show the whole map", () => this.showWhole());
    const how = make("span", { class: "quiet", text: "Drag over cells to zoom into them." });
    return make("div", { class: "map-tools" }, this.less, this.more, this.all, how);
  }

  listen() {
    const { cells, sheet } = this;
    cells.addEventListener("pointermove", (event) => this.onMove(event));
    cells.addEventListener("pointerleave", () => this.look(null));
    cells.addEventListener("blur", () => this.look(null));
    cells.addEventListener("focus", () => this.lookByKey(this.cell ?? [0, 0]));
    cells.addEventListener("click", (event) => this.onClick(event));
    cells.addEventListener("dblclick", () => this.showWhole());
    cells.addEventListener("keydown", (event) => this.onKey(event));
    cells.addEventListener("scroll", () => this.later());
    for (const side of ["row", "column"]) this.listenToLabels(side, this[`${side}Side`].box);
    cells.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    for (const type of ["touchstart", "touchmove"])
      cells.addEventListener(type, (event) => this.onPinch(event), { passive: false });
    sheet.addEventListener("pointerdown", (event) => this.startBrush(event));
    cells.addEventListener("pointerup", (event) => this.endBrush(event));
    cells.addEventListener("pointercancel", () => this.endBrush(null));
    for (const type of ["pointerdown", "pointermove"])
      this.whole.addEventListener(type, (event) => event.buttons && this.goTo(event));
  }

  // A label is a token, as those beside the lines are; keys reach its row and its column through the cells.
  listenToLabels(side, box) {
    const on = (type, work) =>
      box.addEventListener(type, ({ target }) => {
        const label = target.closest(".label");
        work(label && { side: side === "row" ? "query" : "key", index: Number(label.dataset.index) });
      });
    on("click", (token) => token && this.onLabel(token));
    on("pointerover", (token) => this.onLookAtLabel(token));
    box.addEventListener("pointerleave", () => this.onLookAtLabel(null));
  }

  show(matrix) {
    const isSame = this.matrix && this.matrix.rows === matrix.rows && this.matrix.columns === matrix.columns;
    if (!isSame) this.zoom = 0;
    this.matrix = matrix;
    this.cell = null;
    const [rowAxis, columnAxis] = matrix.axes.map((axis) => axis.replace("_", " "));
    const names = [`${rowAxis} ↓`, `${columnAxis} →`];
    this.axes.replaceChildren(...names.map((text) => make("div", { text })));
    const size = `${matrix.rows} × ${matrix.columns}`;
    this.cells.setAttribute(
      "aria-label",
      `Map of ${matrix.title}, ${size}; arrow keys move to a cell, Enter selects it, + and - zoom, 0 shows the whole map`,
    );
    this.pixels = paint(this.canvas, matrix.values, matrix.columns, matrix.shading, matrix.skip);
    this.rowSide.labels = matrix.rowLabels;
    this.columnSide.labels = matrix.columnLabels;
    for (const side of [this.rowSide, this.columnSide]) side.longest = longestOf(side.labels);
    this.leastLeft = AXIS_FONT * longestOf(names.map((token) => ({ position: "", token }))) + 8;
    this.mark(null, null);
    this.showMarks();
    this.resize();
  }

  // Frames around marked cells; dashed if the mark was not confirmed.
  showMarks() {
    const { rows, columns, marks } = this.matrix;
    this.marks.replaceChildren(
      ...marks.map(([row, column, isHit]) => {
        const frame = make("span", { class: isHit ? "hit" : "missed" });
        Object.assign(frame.style, bounds(row, 1, rows, "top", "height"), bounds(column, 1, columns, "left", "width"));
        return frame;
      }),
    );
  }

  resize() {
    if (!this.matrix || !this.container.offsetParent) return;
    this.fit();
    this.showVisible();
  }

  // Fit the map into its container, at the zoom that was chosen.
  fit() {
    const { rows, columns } = this.matrix;
    const fit = this.fitted(0);
    const isSmall = Math.min(fit.across, fit.down) < READABLE_CELL && rows * columns > 1;
    const { across, down, left, top, room, font, isLevel } = isSmall ? this.fitted(TOOLS_PIXELS) : fit;
    this.least = Math.min(across, down);
    this.rowSide.pixels = Math.max(down, this.zoom);
    this.columnSide.pixels = Math.max(across, this.zoom);
    const [width, height] = [this.columnSide.pixels * columns, this.rowSide.pixels * rows];
    const box = [Math.min(room[0], width), Math.min(room[1], height)];
    this.isZoomed = width > room[0] + 1 || height > room[1] + 1;
    this.container.classList.toggle("zoomed", this.isZoomed);
    setSize(this.sheet, width, height);
    setSize(this.cells, ...box);
    this.corner.style.width = `${left}px`;
    setSize(this.columnSide.box, box[0], top);
    setSize(this.rowSide.box, left, box[1]);
    this.columnSide.box.classList.toggle("level", isLevel);
    this.container.style.setProperty("--label-font", `${font}px`);
    this.font = font;
    this.tools.hidden = !isSmall;
    this.less.disabled = this.all.disabled = !this.isZoomed;
    this.more.disabled = this.zoom >= LARGEST_CELL;
    this.canvas.classList.toggle("enlarged", this.columnSide.pixels >= 1 && this.rowSide.pixels >= 1);
    this.showSmall(left, top);
  }

  // Size of a cell, the labels and the room for cells, if `below` pixels are needed below the map.
  fitted(below) {
    const { clientWidth } = this.container;
    const most = highestOn(this.container, LEAST_HEIGHT, parseFloat(getComputedStyle(this.container).maxHeight));
    const longest = clientWidth < NARROW ? LONGEST_LEFT_NARROW : LONGEST_LEFT;
    const areNumbers = this.columnSide.labels.every(({ token }) => !token);
    let fit = null;
    // Larger cells have larger labels. Labels that are too wide for their column are turned.
    for (const [cell, font] of LABEL_FONTS) {
      for (const isLevel of [true, false]) {
        const left = Math.max(this.zoom ? LEAST_CORNER : this.leastLeft, Math.min(longest, this.rowSide.longest * font) + 9);
        const turned = Math.min(LONGEST_TOP, this.columnSide.longest * font) + 7;
        const top = Math.max(this.zoom ? LEAST_CORNER : 2 * AXIS_FONT + 8, isLevel ? font + 10 : turned);
        const room = [Math.max(20, clientWidth - left - 1), Math.max(80, most - top - below)];
        fit = { left, top, room, font, isLevel, ...cellsIn(this.matrix, room) };
        const shown = Math.max(fit.across, this.zoom);
        if (areNumbers || this.columnSide.longest * font + 6 <= shown) break;
      }
      if (Math.min(Math.max(fit.across, this.zoom), Math.max(fit.down, this.zoom)) >= cell) break;
    }
    return fit;
  }

  // The small map with the visible part, if only a part is visible.
  showSmall(left, top) {
    this.whole.hidden = !this.isZoomed;
    this.axes.hidden = this.isZoomed;
    if (!this.isZoomed) return;
    const { rows, columns } = this.matrix;
    const scale = Math.min((left - 8) / columns, (top - 8) / rows);
    const size = [columns, rows].map((count) => Math.max(10, Math.round(count * scale)));
    [this.small.width, this.small.height] = size;
    setSize(this.whole, ...size);
    this.small.getContext("2d").drawImage(this.canvas, 0, 0, ...size);
  }

  // At most once per frame, however fast the map scrolls.
  later() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.showVisible());
  }

  // Labels and numbers of the visible part.
  showVisible() {
    const { cells } = this;
    const seen = (side, start, size) => {
      Object.assign(side, { start, size });
      side.first = Math.max(0, Math.floor(start / side.pixels));
      side.end = Math.min(side.labels.length, Math.ceil((start + size) / side.pixels - 1e-6));
    };
    seen(this.columnSide, cells.scrollLeft, cells.clientWidth);
    seen(this.rowSide, cells.scrollTop, cells.clientHeight);
    this.showLabels(this.columnSide, "left");
    this.showLabels(this.rowSide, "top");
    this.showNumbers();
    this.showCross();
    Object.assign(
      this.window.style,
      bounds(this.columnSide.start, this.columnSide.size, this.sheet.offsetWidth, "left", "width"),
      bounds(this.rowSide.start, this.rowSide.size, this.sheet.offsetHeight, "top", "height"),
    );
    if (this.container.matches(":hover, :focus-within")) this.onView(this.view());
  }

  view() {
    return { zoom: this.zoom, left: this.cells.scrollLeft, top: this.cells.scrollTop };
  }

  // Show the same part as another map.
  follow({ zoom, left, top }) {
    if (!this.matrix) return;
    this.zoom = zoom;
    this.resize();
    this.cells.scrollTo({ left, top });
  }

  // As many labels as fit, at equal distances. Columns of numbers need their width, turned ones their height.
  showLabels(side, edge) {
    const { labels, pixels, first, end, start, size } = side;
    const isLevel = edge === "left" && side.box.classList.contains("level");
    const needed = isLevel ? side.longest * this.font + 8 : this.font + 1;
    const step = Math.max(1, Math.ceil(needed / pixels));
    const shown = [];
    for (let i = Math.ceil(first / step) * step; i < end; i += step) {
      const centre = (i + 0.5) * pixels - start;
      if (centre < 0 || centre > size) continue;
      const label = labelOf(labels[i], shortened(labels[i].token));
      linkTo(label, { [this.matrix.axes[edge === "left" ? 1 : 0]]: labels[i].position });
      label.dataset.index = i;
      label.style[edge] = `${centre}px`;
      shown.push(label);
    }
    side.list.replaceChildren(...shown);
  }

  // Numbers in the visible cells if they fit, with at least two decimals.
  showNumbers() {
    const { values, columns, decimals } = this.matrix;
    const { columnSide: across, rowSide: down } = this;
    const count = (down.end - down.first) * (across.end - across.first);
    const cells = [];
    if (count <= MOST_NUMBERS && down.pixels >= 14) {
      for (let row = down.first; row < down.end; row++)
        for (let column = across.first; column < across.end; column++) cells.push(row * columns + column);
    }
    const fits = (digits) => {
      const longest = Math.max(...cells.map((at) => fixed(values[at], digits).length));
      return NUMBER_FONTS.find((font) => font + 4 <= down.pixels && longest * DIGIT * font + 5 <= across.pixels);
    };
    let digits = decimals;
    while (digits > 2 && !fits(digits)) digits--;
    const font = cells.length ? fits(digits) : undefined;
    this.numbers.hidden = !font;
    if (!font) return;
    const { style } = this.numbers;
    Object.assign(style, { fontSize: `${font}px`, left: `${across.first * across.pixels}px`, top: `${down.first * down.pixels}px` });
    style.gridTemplate = `repeat(${down.end - down.first}, ${down.pixels}px) / repeat(${across.end - across.first}, ${across.pixels}px)`;
    this.numbers.replaceChildren(
      ...cells.map((at) => {
        const tone = !this.pixels[at] ? "on-page" : isLight(this.pixels[at]) ? "on-light" : "on-dark";
        return make("span", { class: tone, text: fixed(values[at], digits) });
      }),
    );
  }

  cellAt(event) {
    const box = this.sheet.getBoundingClientRect();
    const { rows, columns } = this.matrix;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return [Math.max(0, Math.min(rows - 1, row)), Math.max(0, Math.min(columns - 1, column))];
  }

  onMove(event) {
    if (this.from && !this.drawBrush(event)) return;
    this.look(...this.cellAt(event));
  }

  onClick(event) {
    if (this.wasBrushed) {
      this.wasBrushed = false;
      return;
    }
    const cell = this.cellAt(event);
    this.look(...cell); // a finger does not move
    this.onPick(cell);
  }

  look(row, column) {
    if (this.cell && row !== null && this.cell[0] === row && this.cell[1] === column) return;
    this.cell = row === null ? null : [row, column];
    this.mark(row, column ?? null);
    this.onCell(this.cell);
  }

  lookByKey([row, column]) {
    this.byKey = [row, column];
    if (this.cells.matches(":focus-visible")) this.look(row, column);
  }

  onKey(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const [row, column] = this.cell ?? this.byKey ?? [0, 0];
    const { rows, columns } = this.matrix;
    const arrow = ARROWS[event.key];
    const works = {
      Enter: () => this.onPick([row, column]),
      " ": () => this.onPick([row, column]),
      "+": () => this.zoomBy(ZOOM_STEP, [row, column]),
      "=": () => this.zoomBy(ZOOM_STEP, [row, column]),
      "-": () => this.zoomBy(1 / ZOOM_STEP, [row, column]),
      0: () => this.showWhole(),
      Home: () => this.goByKey(row, 0),
      End: () => this.goByKey(row, columns - 1),
    };
    if (event.key === "Escape") {
      // Only if nothing else on the page takes the key.
      setTimeout(() => event.defaultPrevented || this.showWhole());
      return;
    }
    if (!arrow && !works[event.key]) return;
    event.preventDefault();
    if (!arrow) works[event.key]();
    else
      this.goByKey(
        Math.max(0, Math.min(rows - 1, row + arrow[1])),
        Math.max(0, Math.min(columns - 1, column + arrow[0])),
      );
  }

  goByKey(row, column) {
    this.byKey = [row, column];
    this.look(row, column);
    this.reveal(row, column);
  }

  // Scroll a cell into the visible part.
  reveal(row, column) {
    const { cells } = this;
    const into = (start, size, at, pixels) => Math.max((at + 1) * pixels - size, Math.min(start, at * pixels));
    cells.scrollTo({
      left: into(cells.scrollLeft, cells.clientWidth, column, this.columnSide.pixels),
      top: into(cells.scrollTop, cells.clientHeight, row, this.rowSide.pixels),
    });
  }

  // Frames around a row and a column, with their whole labels; null removes them.
  mark(row, column) {
    const { rows, columns } = this.matrix;
    this.marked = [row, column];
    this.rowFrame.hidden = row === null;
    this.columnFrame.hidden = column === null;
    Object.assign(this.rowFrame.style, bounds(row, 1, rows, "top", "height"));
    Object.assign(this.columnFrame.style, bounds(column, 1, columns, "left", "width"));
    if (this.columnSide.pixels) this.showCross();
  }

  showCross() {
    [this.rowSide, this.columnSide].forEach((side, i) => {
      const { cross, box, labels } = side;
      const at = this.marked[i];
      const centre = (at + 0.5) * side.pixels - side.start;
      cross.hidden = at === null || centre < 0 || centre > side.size;
      if (cross.hidden) return;
      cross.replaceChildren(...labelOf(labels[at], labels[at].token).childNodes);
      if (!i) {
        cross.classList.toggle("long", cross.scrollWidth > box.clientWidth - 4);
        cross.style.top = `${centre}px`;
        return;
      }
      // Within the map, even if the label is longer than its column is far from the edge.
      const half = cross.offsetWidth / 2;
      const [least, most] = [half - box.offsetLeft, this.container.clientWidth - box.offsetLeft - half];
      cross.style.left = `${Math.max(least, Math.min(most, centre))}px`;
    });
  }

  // Zoom around a point of the screen: the cell there stays there.
  zoomAt(pixels, { clientX, clientY }) {
    const area = this.cells.getBoundingClientRect();
    const at = [clientX - area.left, clientY - area.top];
    const cell = [
      (this.cells.scrollLeft + at[0]) / this.columnSide.pixels,
      (this.cells.scrollTop + at[1]) / this.rowSide.pixels,
    ];
    this.zoom = pixels <= this.least ? 0 : Math.min(LARGEST_CELL, pixels);
    this.fit();
    if (!this.isZoomed && this.zoom) {
      this.zoom = 0;
      this.fit();
    }
    this.cells.scrollTo({ left: cell[0] * this.columnSide.pixels - at[0], top: cell[1] * this.rowSide.pixels - at[1] });
    this.showVisible();
  }

  // Zoom around a cell, by default the one in the middle.
  zoomBy(factor, cell = this.cell) {
    const area = this.sheet.getBoundingClientRect();
    const box = this.cells.getBoundingClientRect();
    const middle = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2 };
    const point = cell
      ? {
          clientX: area.left + (cell[1] + 0.5) * this.columnSide.pixels,
          clientY: area.top + (cell[0] + 0.5) * this.rowSide.pixels,
        }
      : middle;
    this.zoomAt((this.zoom || this.least) * factor, point);
  }

  showWhole() {
    if (!this.isZoomed) return;
    this.zoom = 0;
    this.resize();
  }

  onWheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoomAt((this.zoom || this.least) * Math.exp(-Math.max(-60, Math.min(60, event.deltaY)) / 120), event);
  }

  // Two fingers.
  onPinch(event) {
    if (event.touches.length !== 2) return;
    event.preventDefault();
    const [one, other] = event.touches;
    const distance = Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    if (event.type === "touchstart") this.pinched = { distance, pixels: this.zoom || this.least };
    else
      this.zoomAt((this.pinched.pixels * distance) / this.pinched.distance, {
        clientX: (one.clientX + other.clientX) / 2,
        clientY: (one.clientY + other.clientY) / 2,
      });
  }

  // A finger scrolls; everything else drags a rectangle.
  startBrush(event) {
    this.wasBrushed = false;
    if (event.pointerType === "touch" || event.button || this.tools.hidden) return;
    this.from = { x: event.clientX, y: event.clientY, id: event.pointerId };
  }

  // The rectangle of cells from where the pointer went down. Returns false unless the pointer may still be clicking.
  drawBrush(event) {
    const { x, y, id } = this.from;
    if (!this.wasBrushed && Math.hypot(event.clientX - x, event.clientY - y) < DRAGGED) return true;
    if (!this.wasBrushed) this.cells.setPointerCapture(id);
    this.wasBrushed = true;
    const [one, other] = [this.cellAt({ clientX: x, clientY: y }), this.cellAt(event)];
    const [top, left] = [0, 1].map((side) => Math.min(one[side], other[side]));
    const [height, width] = [0, 1].map((side) => Math.abs(one[side] - other[side]) + 1);
    this.brushed = { top, left, height, width };
    const { rows, columns } = this.matrix;
    this.brush.hidden = false;
    Object.assign(this.brush.style, bounds(top, height, rows, "top", "height"), bounds(left, width, columns, "left", "width"));
    return false;
  }

  endBrush(event) {
    const { brushed } = this;
    this.from = this.brushed = null;
    this.brush.hidden = true;
    if (!event || !brushed) return;
    this.zoom = LARGEST_CELL; // a zoomed map has other room beside its labels
    const { room } = this.fitted(TOOLS_PIXELS);
    const pixels = Math.min(LARGEST_CELL, room[0] / brushed.width, room[1] / brushed.height);
    this.zoom = pixels > this.least ? pixels : 0;
    this.fit();
    const { columnSide: across, rowSide: down } = this;
    const start = (side, first, count, size) => (first + count / 2) * side.pixels - size / 2;
    this.cells.scrollTo({
      left: start(across, brushed.left, brushed.width, this.cells.clientWidth),
      top: start(down, brushed.top, brushed.height, this.cells.clientHeight),
    });
    this.showVisible();
  }

  // Move the visible part to a point of the small map.
  goTo(event) {
    event.preventDefault();
    const box = this.small.getBoundingClientRect();
    const share = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    this.cells.scrollTo({
      left: share[0] * this.sheet.offsetWidth - this.cells.clientWidth / 2,
      top: share[1] * this.sheet.offsetHeight - this.cells.clientHeight / 2,
    });
  }
}

// Labels along one side of the map, and the one at the pointer.
function sideOf(name) {
  const list = make("div");
  const cross = make("div", { class: "cross", hidden: "" });
  return { list, cross, box: make("div", { class: name, "aria-hidden": "true" }, list, cross) };
}

function labelOf({ position, token }, text) {
  const label = make("span", { class: "label" }, make("span", { class: "position", text: position }));
  if (token) label.append(" ", makeToken(text));
  return label;
}

// Width of the longest label in ems.
function longestOf(labels) {
  pen.font = `100px ${getComputedStyle(document.body).fontFamily}`;
  let longest = 0;
  for (const { position, token } of labels) {
    const ofToken = token ? pen.measureText(` ${shortened(token)}`).width : 0;
    const width = pen.measureText(position).width * 0.85 + ofToken;
    if (width > longest) longest = width;
  }
  return longest / 100;
}

// Width and height of a cell. Cells of tokens by tokens are square unless there are fewer rows, or far fewer columns.
function cellsIn({ rows, columns, isAttention }, [width, height]) {
  const [across, down] = [width / columns, height / rows];
  if (!isAttention) {
    const wide = Math.min(WIDEST_CELL, across);
    return { across: wide, down: Math.min(Math.max(HIGHEST_CELL, HIGHEST_SHARE * wide), down) };
  }
  const square = Math.min(LARGEST_CELL, across, down);
  return {
    across: 2 * columns < rows ? Math.min(across, Math.max(square, WIDE_CELL)) : square,
    down: rows < columns ? Math.min(down, Math.max(TALL_SHARE * square, WIDE_CELL)) : square,
  };
}

function setSize({ style }, width, height) {
  style.width = `${width}px`;
  style.height = `${height}px`;
}

// A range of a whole as percentages.
const bounds = (first, count, whole, start, size) => ({
  [start]: `${(100 * first) / whole}%`,
  [size]: `${(100 * count) / whole}%`,
});
