// Removed heads: the selected head, or the heads that are clicked.

import { chosen, overview } from "attn/page/chosen.js";
import { surveyed } from "attn/page/rankings.js";
import { byId, make } from "attn/parts/elements.js";
import { shortPlace } from "attn/values/labels.js";

export const out = new Set();
let isClicking = false;

// `5:11`, with the stack if there are several; null if the map is not a head's.
function headOf(number) {
  const { tensor, report } = chosen;
  if (!tensor || String(tensor.leading) !== "layer,head") return null;
  const place = shortPlace(tensor.place(number));
  if (tensor.name === "linear_weights") return `linear:${place}`; // a layer without a softmax
  const row = surveyed(report).find(({ layer, head }) => `${layer}:${head}` === place);
  const stack = row?.stack ?? "self";
  return stack === "self" ? place : `${stack}:${place}`;
}

const headNow = () => (chosen.report && chosen.tensor ? headOf(chosen.number) : null);

function showRemoval() {
  const head = headNow();
  byId("take-out").hidden = byId("takes-out").hidden = head === null;
  byId("take-out").textContent = out.has(head) ? `Restore ${head}` : `Remove ${head}`;
  byId("take-out").title = "LAYER:HEAD. All answers are computed without the removed heads";
  byId("removal").hidden = head === null && !out.size;
  byId("put-back").hidden = !out.size;
  byId("ask-ablate").title = out.size ? "Measures the loss without each removed head, and without all of them" : "Measures the loss without each head in turn";
  for (const { number, element } of overview.items) element.classList.toggle("out", out.has(headOf(number)));
}

export function listenToRemoval(onChange) {
  const changed = () => {
    const heads = [...out].map((head) => make("button", { type: "button", "data-head": head, title: `Restore ${head}`, text: `${head} ×` }));
    byId("out-heads").replaceChildren(...heads);
    showRemoval();
    onChange();
  };
  const toggle = (head) => {
    if (head === null) return;
    if (!out.delete(head)) out.add(head);
    changed();
  };
  byId("take-out").addEventListener("click", () => toggle(headNow()));
  byId("takes-out").addEventListener("click", ({ target }) => {
    isClicking = !isClicking;
    target.setAttribute("aria-pressed", isClicking);
  });
  byId("thumbnails").addEventListener("click", (event) => {
    const element = event.target.closest(".thumbnail");
    if (isClicking && element && !event.shiftKey) toggle(headOf(Number(element.dataset.number)));
  });
  byId("out-heads").addEventListener("click", ({ target }) => {
    if (target.dataset.head) toggle(target.dataset.head);
  });
  byId("put-back").addEventListener("click", () => (out.clear(), changed()));
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "a") toggle(headNow());
  });
  new MutationObserver(showRemoval).observe(byId("matrix-title"), { childList: true });
  new MutationObserver(showRemoval).observe(byId("thumbnails"), { childList: true });
}
