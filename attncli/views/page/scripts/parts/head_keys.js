// One button per head of a layer, with its colour and the largest weight of the hovered token.

import { make, makeToken } from "./elements.js";
import { linkTo } from "./linked.js";
import { fixed, largestIn } from "../values/numbers.js";

export class HeadKeys {
  constructor(container, onSwitch) {
    this.list = make("div", { class: "head-keys", role: "group", "aria-label": "Heads of the layer" });
    const all = make("button", { type: "button", text: "All on" });
    const none = make("button", { type: "button", text: "All off" });
    this.box = make("div", { hidden: "" }, make("div", { class: "controls" }, all, none), this.list);
    container.append(this.box);
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) onSwitch([Number(button.dataset.number)]);
    });
    const thatAre = (on) => this.heads.filter(({ isOn }) => isOn === on).map(({ head }) => head);
    all.addEventListener("click", () => onSwitch(thatAre(false)));
    none.addEventListener("click", () => onSwitch(thatAre(true)));
  }

  // Heads have a number, an ink, a matrix, and whether they are on and chosen. An empty list hides the buttons.
  show(heads, source) {
    const isSame = String(this.heads?.map(({ head }) => head)) === String(heads.map(({ head }) => head));
    this.heads = heads;
    this.box.hidden = !heads.length;
    if (!isSame) this.list.replaceChildren(...heads.map(({ head }) => this.makeKey(head)));
    heads.forEach(({ ink, isOn, isChosen, matrix }, i) => {
      const button = this.list.children[i];
      const [swatch, , said] = button.children;
      swatch.style.background = `rgb(${ink})`;
      linkTo(button, Object.fromEntries(matrix.place));
      button.ariaPressed = isOn;
      button.ariaCurrent = isChosen;
      said.replaceChildren(...this.said(matrix, source));
    });
  }

  makeKey(head) {
    const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
    const said = make("span", { class: "said quiet" });
    const button = make("button", { type: "button" }, swatch, make("span", { text: `head ${head}` }), said);
    button.dataset.number = head;
    return button;
  }

  // The key with the largest weight of a query, or the query with the largest weight on a key.
  said(matrix, source) {
    if (!source) return ["\u00a0"];
    const isQuery = source.query !== null;
    const numbers = isQuery ? matrix.row(source.query) : matrix.column(source.key);
    const first = isQuery ? matrix.skip : 0;
    const at = first + largestIn(numbers.subarray(first));
    const label = (isQuery ? matrix.columnLabels : matrix.rowLabels)[at];
    return [makeToken(label.token || label.position), ` ${fixed(numbers[at], 2)}`];
  }
}
