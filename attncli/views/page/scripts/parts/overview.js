// All matrices of a tensor as thumbnails, in order of a statistic, beside a small grid of all of them. Calls `onChoose` on a click, a tap or an arrow key, `onCompare` with
// shift, and `onRead` under the pointer.

import { inNextRow, make, moved } from "./elements.js";
import { HeadGrid } from "./head_grid.js";
import { endsOf } from "../values/colours.js";
import { placeText, shortPlace } from "../values/labels.js";
import { isNumber, shortScalar } from "../values/numbers.js";

// Largest number of a layer's heads side by side there.
const MOST_ACROSS = 4;
const MOST_ACROSS_NARROW = 6; // small thumbnails on a phone
// Thumbnails with more columns than this show no single cells.
const MOST_PIXELATED = 64;

export class Overview {
  constructor(container) {
    this.container = container;
    this.items = [];
    this.grid = new HeadGrid(container, (number, isCompared) =>
      isCompared ? this.onCompare(number) : this.onChoose(number, true),
    );
    this.grid.onDrawn = () => this.reveal();
    this.setSize("medium");
    container.addEventListener("click", (event) => this.onClick(event));
    container.addEventListener("keydown", (event) => this.onKey(event));
    container.addEventListener("pointermove", (event) => this.read(event));
    container.addEventListener("pointerleave", () => this.onRead(null));
  }

  // One thumbnail per matrix, except for matrices without any number.
  show(tensor, isFull) {
    this.tensor = tensor;
    this.items = [];
    for (let number = 0; number < tensor.count; number++) {
      const ends = endsOf(tensor.matrix(number), tensor.columns, 0);
      if (ends.low > ends.high) continue;
      const place = tensor.place(number);
      const canvas = make("canvas", { "aria-hidden": "true" });
      const statistic = make("span", { class: "statistic" });
      const caption = make("span", { class: "caption", "aria-hidden": "true" });
      caption.append(make("span", { text: shortPlace(place) }), statistic);
      const element = make("div", {
        class: "thumbnail",
        role: "option",
        tabindex: "-1",
        title: placeText(place),
      });
      element.append(canvas, caption);
      if (isFull(place)) element.classList.add("full");
      element.dataset.number = number;
      this.items.push({ number, place, canvas, element, statistic });
    }
    this.hasLayers = tensor.axes[0] === "layer" && tensor.shape[0] > 1;
    this.container.classList.toggle("fine", tensor.columns > MOST_PIXELATED);
    const numHeads = tensor.leadingShape.at(-1);
    this.container.style.setProperty("--heads", numHeads);
    // Split the heads of a layer into rows of equal length if possible.
    const evenly = (most) => Math.ceil(numHeads / Math.ceil(numHeads / most));
    this.container.style.setProperty("--across", evenly(MOST_ACROSS));
    this.container.style.setProperty("--across-narrow", evenly(MOST_ACROSS_NARROW));
    this.grid.show(this.items, tensor);
    this.setSize(this.size);
  }

  // Small thumbnails show all maps at once, large ones use the full width.
  setSize(size) {
    this.size = size;
    this.container.dataset.size = size;
    const isBeside = size !== "large" && this.items.length > 1 && !this.tensor.isOverSteps;
    this.container.closest(".workspace").classList.toggle("beside", isBeside);
  }

  paint(paintNumber) {
    for (const { number, canvas } of this.items) paintNumber(canvas, number);
    this.grid.draw();
  }

  // Arrange by a statistic, or by axes with one line per layer; all layers or a single one.
  arrange(ranking, isAscending, layer) {
    let shown = this.items.filter(({ place }) => layer === "" || place[0][1] === Number(layer));
    const values = new Map(shown.map((item) => [item, ranking?.of(item.place, item.number)]));
    const compare = (one, other) => {
      const [first, second] = [values.get(one), values.get(other)];
      if (!isNumber(first) || !isNumber(second)) return isNumber(second) - isNumber(first);
      return isAscending ? first - second : second - first;
    };
    if (ranking) shown = [...shown].sort(compare);
    for (const item of shown) {
      const text = ranking ? shortScalar(values.get(item)) : "";
      item.statistic.textContent = text;
      const said = ranking ? `, ${ranking.label} ${text}` : "";
      item.element.setAttribute("aria-label", placeText(item.place) + said);
    }
    this.shown = shown;
    this.grid.rank(ranking?.label, ranking ? new Map(this.items.map((item) => [item, ranking.of(item.place, item.number)])) : null, shown);
    this.container.classList.toggle("atlas", !ranking && this.hasLayers);
    this.container.replaceChildren(
      ...shown.flatMap(({ element, place }, i) => {
        const isFirst = !ranking && this.hasLayers && place[0][1] !== shown[i - 1]?.place[0][1];
        return isFirst ? [this.layerLabel(place), element] : [element];
      }),
    );
    return shown;
  }

  layerLabel([layer]) {
    return make("div", { class: "layer-label quiet", role: "presentation", text: placeText([layer]) });
  }

  mark(number) {
    for (const item of this.items) {
      const isChosen = item.number === number;
      item.element.setAttribute("aria-selected", isChosen);
      item.element.tabIndex = isChosen ? 0 : -1;
    }
    if (this.shown.length && !this.shown.some((item) => item.number === number))
      this.shown[0].element.tabIndex = 0;
    this.grid.mark(number);
    this.chosen = this.shown.find((item) => item.number === number)?.element;
    this.reveal();
  }

  // Scroll the list, not the page, to the chosen thumbnail.
  reveal() {
    if (!this.chosen) return;
    const { container, chosen } = this;
    const top = chosen.offsetTop - container.offsetTop;
    const below = top + chosen.offsetHeight - container.clientHeight;
    container.scrollTop = Math.max(below, Math.min(container.scrollTop, top));
  }

  onClick(event) {
    const element = event.target.closest(".thumbnail");
    if (!element) return;
    if (event.shiftKey) this.onCompare(Number(element.dataset.number));
    else this.chooseAt(element, true);
  }

  // Opened with a click or Enter, not merely passed with an arrow key.
  chooseAt(element, isOpened = false) {
    element.focus();
    this.onChoose(Number(element.dataset.number), isOpened);
  }

  onKey(event) {
    const elements = this.shown.map(({ element }) => element);
    const index = elements.indexOf(event.target.closest(".thumbnail"));
    if (index < 0) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (event.shiftKey) this.onCompare(this.shown[index].number);
      else this.chooseAt(elements[index], true);
      return;
    }
    const isAcross = event.key === "ArrowUp" || event.key === "ArrowDown";
    const to = isAcross
      ? inNextRow(elements, index, event.key === "ArrowDown")
      : moved(event, index, elements.length, 1);
    if (to === null) return;
    event.preventDefault();
    this.chooseAt(elements[to]);
  }

  read(event) {
    const element = event.target.closest(".thumbnail");
    const item = this.items.find((each) => each.element === element);
    const box = item?.canvas.getBoundingClientRect();
    if (!box) return this.onRead(null);
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.tensor.rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * this.tensor.columns);
    const isInside = row >= 0 && row < this.tensor.rows && column >= 0 && column < this.tensor.columns;
    this.onRead(isInside ? { ...item, row, column } : null);
  }

  // The matrix `by` places after another one, in the order shown.
  neighbour(number, steps) {
    const index = this.shown.findIndex((item) => item.number === number);
    return this.shown[Math.max(0, Math.min(this.shown.length - 1, index + steps))]?.number ?? number;
  }
}
