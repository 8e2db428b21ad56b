// One bar per head, as long as its spread; the selected head is outlined.

import { make } from "attn/parts/elements.js";
import { fixed } from "attn/values/numbers.js";

export function show(section, { statistics }, { largest }) {
  const bars = statistics.heads.map(({ layer, head, spread }) => {
    const bar = make("li", { text: `${layer}:${head} ${fixed(spread, 2)}` });
    bar.style.width = `${(100 * spread) / largest}%`;
    return bar;
  });
  section.replaceChildren(make("ol", {}, ...bars));
  return (place) =>
    statistics.heads.forEach(({ stack, layer, head }, i) => {
      const isOfStack = !place.stack || stack === place.stack;
      bars[i].classList.toggle("picked", isOfStack && layer === place.layer && head === place.head);
    });
}
