// Queries and keys side by side: lines, or shades, from a token to where it looks and from who looks at it.

const MOST_TOKENS_WITH_LINES = 64;
// One after the other for tokens that are kept.
const PIN_COLOURS = ["pin-0", "pin-1", "pin-2", "pin-3", "pin-4", "pin-5"];

class TokenSides {
  constructor(container, { onLook, onPin }) {
    this.container = container;
    this.onLook = onLook;
    this.onPin = onPin;
    this.switch = make("button", { type: "button" });
    this.clear = make("button", { type: "button", text: "Let all go" });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.lists = { query: this.makeList("query"), key: this.makeList("key") };
    this.sides = make("div", { class: "sides" });
    this.sides.append(this.lists.query.box, this.canvas, this.lists.key.box);
    container.append(make("div", { class: "controls" }, this.switch, this.clear), this.sides);
    this.switch.addEventListener("click", () => this.toggle());
    this.sides.addEventListener("pointerleave", () => this.onLook(null));
    new ResizeObserver(() => this.drawLines()).observe(this.sides);
  }

  makeList(side) {
    const name = side === "query" ? "queries" : "keys";
    const said = { query: "queries: who looks", key: "keys: looked at" }[side];
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

  // Shades, weights and lines for tokens: each source has a query, a key, or both, and a colour.
  draw(matrix, sources) {
    this.matrix = matrix;
    this.sources = sources;
    this.shade(
      this.lists.key,
      sources.map(({ query }) => (query === null ? null : matrix.row(query))),
    );
    this.shade(
      this.lists.query,
      sources.map(({ key }) => (key === null ? null : matrix.column(key))),
    );
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
    this.clear.hidden = !sources.some(({ isPinned }) => isPinned);
    this.drawLines();
  }

  // A band for each source behind every token, the more opaque the larger the weight; the last one's numbers.
  shade(list, lines) {
    const numbers = lines.at(-1);
    const how = { isLog: this.matrix.isLog, skip: list.side === "key" ? this.matrix.skip : 0 };
    const strengths = lines.map((line) => line && strengthsOf(line, how));
    const colours = this.sources.map(({ colour }) => colourOf(colour));
    const signs = signsOf(this.matrix);
    list.elements.forEach((element, index) => {
      const shares = strengths.map((line) => (line ? line[index] : 0));
      const inks = colours.map((ink, k) => inkOf(lines[k]?.[index], ink, signs));
      const image = shares.some((share) => share > FAINTEST) ? bandsOf(shares, inks) : "";
      if (list.images[index] !== image) element.style.backgroundImage = image;
      list.images[index] = image;
      list.weights[index].data = numbers ? fixed(numbers[index], this.matrix.decimals) : "";
    });
  }

  drawLines() {
    if (!this.matrix || !this.canvas.offsetParent || this.isText) return;
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const top = canvas.getBoundingClientRect().top;
    const middles = (list) =>
      list.elements.map((element) => {
        const box = element.getBoundingClientRect();
        return box.top + box.height / 2 - top;
      });
    const pen = { context, width, from: middles(this.lists.query), to: middles(this.lists.key) };
    if (this.sources.length) this.drawSources(pen);
    else if (pen.from.length <= MOST_TOKENS_WITH_LINES) this.drawAll(pen);
  }

  drawAll(pen) {
    pen.context.lineWidth = 1.5;
    const strengths = strengthsOf(this.matrix.values, this.matrix);
    const { values, columns } = this.matrix;
    const signs = signsOf(this.matrix);
    const colour = colourOf("line");
    for (let i = 0; i < pen.from.length; i++) {
      for (let j = 0; j < pen.to.length; j++) {
        const at = i * columns + j;
        line(pen, i, j, inkOf(values[at], colour, signs), 0.6 * strengths[at]);
      }
    }
  }

  // Solid lines to where a token looks, broken ones from who looks at it.
  drawSources(pen) {
    const { skip, isLog } = this.matrix;
    const signs = signsOf(this.matrix);
    for (const { query, key, colour } of this.sources) {
      const ink = colourOf(colour);
      pen.context.lineWidth = 2;
      if (query !== null) {
        pen.context.setLineDash([]);
        const row = this.matrix.row(query);
        strengthsOf(row, { skip, isLog }).forEach((strength, j) =>
          line(pen, query, j, inkOf(row[j], ink, signs), strength),
        );
      }
      if (key !== null) {
        pen.context.setLineDash([3, 4]);
        const column = this.matrix.column(key);
        strengthsOf(column, { isLog }).forEach((strength, i) =>
          line(pen, i, key, inkOf(column[i], ink, signs), strength),
        );
      }
    }
  }
}
