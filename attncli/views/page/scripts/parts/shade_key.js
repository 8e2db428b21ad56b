// The scale of a text that is shaded by a measure.

import { make } from "./elements.js";
import { shade } from "../values/shades.js";

const NUM_SHADES = 9;

// What the shades mean, from no shade at 0 to the strongest shade at `most`, a number as text.
export function showShadeKey(element, name, most) {
  const steps = Array.from({ length: NUM_SHADES }, (_, i) => {
    const step = make("span", {});
    shade(step, i / (NUM_SHADES - 1));
    return step;
  });
  const bar = make("span", { class: "shade-bar", "aria-hidden": "true" }, ...steps);
  element.replaceChildren(make("span", { text: name }), make("span", { class: "legend-range" }, "0", bar, most));
}
