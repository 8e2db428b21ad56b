// Seconds along a sound.

import { make } from "./elements.js";
import { axisOf, tickText } from "../values/ticks.js";

const [MOST_TICKS, MOST_TICKS_NARROW] = [10, 5];
const isNarrow = matchMedia("(max-width: 500px)");

export function timeAxis(seconds) {
  const { ticks, step } = axisOf(0, seconds, isNarrow.matches ? MOST_TICKS_NARROW : MOST_TICKS);
  const axis = make("div", { class: "time-axis", "aria-hidden": "true" });
  for (const tick of ticks.filter((each) => each <= seconds)) {
    const label = make("span", { text: `${tickText(tick, step)}${tick ? "" : " s"}` });
    label.style.left = `${(100 * tick) / seconds}%`;
    axis.append(label);
  }
  return axis;
}
