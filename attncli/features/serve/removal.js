// Heads that are taken out: the one that is shown, or those that are clicked.

import { chosen, overview } from "attn/page/chosen.js";
import { surveyed } from "attn/page/rankings.js";
import { byId, make } from "attn/parts/elements.js";
import { shortPlace } from "attn/values/labels.js";

export const out = new Set();
let isClicking = false;

// `5:11`, or with its stack where there are two; null where the map is no head's.
function headOf(number) {
  const { tensor, report } = chosen;
  if (!tensor || String(tensor.leading) !== "layer,head") return null;
  const place = shortPlace(tensor.place(number));
  if (tensor.name === "linear_weights") return `linear:${place}`; // of layers without a softmax
  const row = surveyed(report).find(({ layer, head }) => `${layer}:${head}` === place);
  const stack = row?.stack ?? "self";
  return stack === "self" ? place : `${stack}:${place}`;
}

const headNow = () => (chosen.report && chosen.tensor ? headOf(chosen.number) : null);

function showRemoval() {
  const head = headNow();
  byId("take-out").hidden = byId("takes-out").hidden = head === null;
  byId("take-out").textContent = out.has(head) ? `Put ${head} back` : `Take out ${head}`;
  byId("take-out").title = "Layer and head. What is asked while heads are out is asked without them";
  byId("removal").hidden = head === null && !out.size;
  byId("put-back").hidden = !out.size;
  byId("ask-ablate").title = out.size ? "without each head that is out, and without all of them" : "without each head, by itself";
  for (const { number, element } of overview.items) element.classList.toggle("out", out.has(headOf(number)));
}

export function listenToRemoval(onChange) {
  const changed = () => {
    const heads = [...out].map((head) => make("button", { type: "button", "data-head": head, title: `Put ${head} back`, text: `${head} ×` }));
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
