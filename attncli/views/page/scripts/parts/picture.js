// A picture with weights over it. Calls `onLook` for the patch under the pointer or the arrow keys, and `onPick`
// on a click or Enter. Tokens outside the picture are buttons beside it.

import { ARROWS, make, makeToken } from "./elements.js";
import { timeAxis } from "./time_axis.js";
import { placeIn } from "../values/colours.js";
import { weightText } from "../values/numbers.js";

const STAGE_PIXELS = 760;
const TILE_PIXELS = 72;
const MOST_TILES = 48;

// Tokens on each pixel: one layer of token numbers per overlapping box, -1 for none.
function coverOf(boxes, width, height) {
  const layers = [];
  const edge = (share, size) => Math.ceil(share * size - 0.5 - 1e-6);
  boxes.forEach((box, token) => {
    if (!box) return;
    const [left, top, right, bottom] = box;
    for (let y = edge(top, height); y < edge(bottom, height); y++) {
      for (let x = edge(left, width); x < edge(right, width); x++) {
        const at = y * width + x;
        let depth = 0;
        while (layers[depth]?.[at] >= 0) depth++;
        layers[depth] ??= new Int32Array(width * height).fill(-1);
        layers[depth][at] = token;
      }
    }
  });
  return layers;
}

// A picture of a report: its pixels, and the tokens on them in each size that was painted.
export class Picture {
  constructor(data) {
    Object.assign(this, data);
    this.sizes = new Map();
    this.placed = this.boxes.map((box, token) => [box, token]).filter(([box]) => box);
  }

  async load() {
    if (this.bitmap !== undefined) return;
    const bytes = Uint8Array.from(atob(this.png), (character) => character.charCodeAt(0));
    // If the picture cannot be decoded, only the weights are drawn.
    this.bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" })).catch(() => null);
    delete this.png;
  }

  // `most` pixels on the longer side.
  inSize(most) {
    const scale = most / Math.max(this.width, this.height);
    const [width, height] = [this.width, this.height].map((side) => Math.max(1, Math.round(side * scale)));
    const key = `${width}x${height}`;
    if (!this.sizes.has(key)) {
      const cover = coverOf(this.boxes, width, height);
      this.sizes.set(key, { width, height, cover, pixels: this.pixelsIn(width, height) });
    }
    return this.sizes.get(key);
  }

  // RGBA of each pixel.
  pixelsIn(width, height) {
    if (!this.bitmap) return new Uint8ClampedArray(4 * width * height).fill(128);
    const canvas = make("canvas", { width, height });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.imageSmoothingQuality = "high";
    context.drawImage(this.bitmap, 0, 0, width, height);
    return context.getImageData(0, 0, width, height).data;
  }

  // Smallest, largest and smallest positive weight on the picture.
  endsOf(weights) {
    let [low, high, above] = [Infinity, -Infinity, Infinity];
    for (const [, token] of this.placed) {
      const value = weights[token];
      if (value < low) low = value;
      if (value > high) high = value;
      if (value > 0 && value < above) above = value;
    }
    return { low, high, above };
  }

  // The picture with the weights painted over it, as in attn's other views.
  paint(canvas, weights, shading, most, [faint, strong]) {
    const { width, height, cover, pixels } = this.inSize(most);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const image = new ImageData(width, height);
    const { data } = image;
    for (let at = 0; at < width * height; at++) {
      let value = NaN;
      for (let depth = 0; depth < cover.length && cover[depth][at] >= 0; depth++) {
        const weight = weights[cover[depth][at]];
        if (weight === weight) value = (value === value ? value : 0) + weight;
      }
      let [colour, share] = [0, 0];
      if (value === value && shading.low === shading.low) {
        const place = Math.max(0, Math.min(1, placeIn(shading, value, shading)));
        colour = shading.map[Math.round(place * 255)];
        share = faint + (strong - faint) * (shading.isDiverging ? Math.abs(2 * place - 1) : place);
      }
      for (let band = 0; band < 3; band++) {
        const above = (colour >> (8 * band)) & 255;
        data[4 * at + band] = (1 - share) * pixels[4 * at + band] + share * above;
      }
      data[4 * at + 3] = 255;
    }
    canvas.getContext("2d", { willReadFrequently: true }).putImageData(image, 0, 0);
  }
}

export class PictureView {
  constructor(container) {
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.frame = make("div", { class: "frame" });
    this.stage = make("div", { class: "overlay", tabindex: "0", role: "application" });
    this.stage.append(this.canvas, this.frame);
    this.time = make("div");
    this.about = make("p", { class: "quiet" });
    this.elsewhere = make("div", { class: "elsewhere", role: "group", "aria-label": "tokens beside the picture" });
    container.append(make("div", { class: "photograph" }, this.stage, this.time), this.about, this.elsewhere);
    this.stage.addEventListener("pointermove", (event) => this.onLook(this.tokenAt(event)));
    this.stage.addEventListener("pointerleave", () => this.onLook(null));
    this.stage.addEventListener("blur", () => this.onLook(null));
    this.stage.addEventListener("click", (event) => this.onPick(this.tokenAt(event)));
    this.stage.addEventListener("keydown", (event) => this.onKey(event));
    this.elsewhere.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.onPick(this.buttons.find(({ element }) => element === button).token, true);
    });
  }

  // `buttons`: the tokens outside the picture, with their labels and whether they can be chosen.
  show(picture, buttons, { isChoice, note }) {
    this.picture = picture;
    this.isChoice = isChoice;
    this.stage.parentElement.style.setProperty("--aspect", picture.width / picture.height);
    this.time.replaceChildren(picture.seconds ? timeAxis(picture.seconds) : "");
    this.stage.setAttribute(
      "aria-label",
      `Picture ${picture.name}: arrow keys move to a patch${isChoice ? ", Enter selects it as the query" : ""}`,
    );
    this.about.textContent = [picture.about, note].filter(Boolean).join(". ");
    // The padding of a sound is hundreds of tokens.
    const told = buttons.filter(({ hasLook }) => hasLook || !picture.seconds);
    this.buttons = told.map(({ token, label, hasLook }, i) => {
      const canvas = hasLook && i < MOST_TILES ? make("canvas", { "aria-hidden": "true" }) : "";
      const weight = make("span", { class: "weight" });
      const name = make("span", { class: "name" }, makeToken(label));
      const element = make(hasLook ? "button" : "span", hasLook ? { type: "button" } : {}, canvas, name, weight);
      element.classList.add("tile");
      return { token, canvas, weight, element };
    });
    this.elsewhere.replaceChildren(...this.buttons.map(({ element }) => element));
  }

  paint(weights, shading, cover) {
    this.picture.paint(this.canvas, weights, shading, STAGE_PIXELS, cover);
  }

  // Weights of the tokens beside the picture, and the one that is the query.
  mark(query, weightOf, paintTile, decimals) {
    for (const { token, canvas, weight, element } of this.buttons) {
      if (canvas) paintTile(canvas, token, TILE_PIXELS);
      const value = weightOf(token);
      weight.textContent = value === null ? "" : weightText(value, decimals);
      element.ariaPressed = token === query;
    }
    this.query = query;
    const box = query !== null && this.isChoice ? this.picture.boxes[query] : null;
    this.frameAt(box);
  }

  frameAt(box) {
    this.frame.hidden = !box;
    if (!box) return;
    const [left, top, right, bottom] = box.map((share) => 100 * share);
    this.frame.style.inset = `${top}% ${100 - right}% ${100 - bottom}% ${left}%`;
  }

  // The smallest patch under the pointer.
  tokenAt(event) {
    const area = this.stage.getBoundingClientRect();
    const [x, y] = [(event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height];
    const under = this.picture.placed.filter(([[left, top, right, bottom]]) => left <= x && x < right && top <= y && y < bottom);
    const size = ([[left, top, right, bottom]]) => (right - left) * (bottom - top);
    return under.length ? under.reduce((best, other) => (size(other) < size(best) ? other : best))[1] : null;
  }

  onKey(event) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.onPick(this.byKey ?? null);
      return;
    }
    const arrow = ARROWS[event.key];
    const { placed, boxes } = this.picture;
    const ends = { Home: placed[0], End: placed.at(-1) };
    if ((!arrow && !ends[event.key]) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const from = boxes[this.byKey] ? this.byKey : boxes[this.query] ? this.query : null;
    this.byKey = ends[event.key]?.[1] ?? (from === null ? placed[0][1] : this.neighbour(from, arrow));
    this.onLook(this.byKey);
  }

  // The nearest patch in a direction; distance across it counts more than distance along it.
  neighbour(token, [right, down]) {
    const centre = ([left, top, end, bottom]) => [(left + end) / 2, (top + bottom) / 2];
    const [x, y] = centre(this.picture.boxes[token]);
    let [best, least] = [token, Infinity];
    for (const [box, other] of this.picture.placed) {
      const [dx, dy] = [centre(box)[0] - x, centre(box)[1] - y];
      const along = dx * right + dy * down;
      const distance = along + 3 * Math.abs(right ? dy : dx);
      if (along > 1e-6 && distance < least) [best, least] = [other, distance];
    }
    return best;
  }
}
