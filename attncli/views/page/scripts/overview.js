// Every matrix of a tensor as a small map: arrow keys, a click or a tap choose one.

// More maps than that stand beside the chosen one, where there is room.
const FEW_MAPS = 24;

class Overview {
  constructor(container, onChoose) {
    this.container = container;
    this.onChoose = onChoose;
    this.items = [];
    container.addEventListener("click", (event) => this.chooseAt(event.target.closest(".thumbnail")));
    container.addEventListener("keydown", (event) => this.onKey(event));
  }

  // A thumbnail for each matrix that has a number at all.
  show(tensor, isFull) {
    this.tensor = tensor;
    this.items = [];
    for (let number = 0; number < tensor.count; number++) {
      const ends = endsOf(tensor.matrix(number), tensor.columns, 0);
      if (ends.low > ends.high) continue;
      const place = tensor.place(number);
      const canvas = make("canvas", { "aria-hidden": "true" });
      const figure = make("span", { class: "figure" });
      const caption = make("span", { class: "caption", "aria-hidden": "true" });
      caption.append(make("span", { text: shortPlace(place) }), figure);
      const element = make("div", {
        class: "thumbnail",
        role: "option",
        tabindex: "-1",
        title: placeText(place),
      });
      element.append(canvas, caption);
      if (isFull(place)) element.classList.add("full");
      element.dataset.number = number;
      this.items.push({ number, place, canvas, element, figure });
    }
    const heads = tensor.axes.includes("layer") ? tensor.leadingShape.at(-1) : 0;
    this.container.style.setProperty("--heads", heads);
    this.heads = heads;
    this.container.closest(".workspace").classList.toggle("beside", this.items.length > FEW_MAPS);
  }

  paint(shadingOfMatrix, skip) {
    for (const { number, canvas } of this.items) {
      paint(canvas, this.tensor.matrix(number), this.tensor.columns, shadingOfMatrix(number), skip);
    }
  }

  // In the order of a figure, largest first, or of the axes; of one layer, or of all.
  arrange(figureOf, figureName, layer) {
    let shown = this.items.filter(
      ({ place }) => layer === "" || Object.fromEntries(place).layer === Number(layer),
    );
    const figures = new Map(
      shown.map((item) => [item, figureOf ? figureOf(item.place, item.number) : undefined]),
    );
    const rank = (item) => (isNumber(figures.get(item)) ? figures.get(item) : -Infinity);
    if (figureOf) shown = [...shown].sort((one, other) => rank(other) - rank(one));
    for (const item of shown) {
      item.figure.textContent = figureOf ? scalar(figures.get(item)) : "";
      const said = figureOf ? `, ${figureName} ${scalar(figures.get(item))}` : "";
      item.element.setAttribute("aria-label", placeText(item.place) + said);
    }
    this.shown = shown;
    this.container.classList.toggle("atlas", !figureOf && this.heads > 1);
    this.container.replaceChildren(...shown.map(({ element }) => element));
    return shown;
  }

  mark(number) {
    for (const item of this.items) {
      const isChosen = item.number === number;
      item.element.setAttribute("aria-selected", isChosen);
      item.element.tabIndex = isChosen ? 0 : -1;
    }
    if (this.shown.length && !this.shown.some((item) => item.number === number))
      this.shown[0].element.tabIndex = 0;
  }

  chooseAt(element) {
    if (!element) return;
    element.focus();
    this.onChoose(Number(element.dataset.number));
  }

  onKey(event) {
    const elements = this.shown.map(({ element }) => element);
    const index = elements.indexOf(event.target.closest(".thumbnail"));
    if (index < 0) return;
    const isPick = event.key === "Enter" || event.key === " ";
    const to = isPick ? index : moved(event, index, elements.length, columnsOf(elements));
    if (to === null) return;
    event.preventDefault();
    this.chooseAt(elements[to]);
  }

  // The matrix so many places after that one, in the order shown.
  neighbour(number, steps) {
    const index = this.shown.findIndex((item) => item.number === number);
    return this.shown[Math.max(0, Math.min(this.shown.length - 1, index + steps))]?.number ?? number;
  }
}
