// The texts of a head's examples: the query is framed, and every token is shaded by the weight that the query gives it.

import { byId, make } from "attn/parts/elements.js";
import { showShadeKey } from "attn/parts/shade_key.js";
import { writtenText } from "attn/parts/written.js";
import { fixed, scalar } from "attn/values/numbers.js";

export function show(container, report, examples) {
  const legend = make("p", { class: "legend" });
  showShadeKey(legend, "weight of the framed token on each token", "1");
  const kinds = [...new Set(examples.map(({ kind }) => kind))];
  const parts = kinds.map((kind) => {
    const cards = examples.filter((example) => example.kind === kind).map(cardOf);
    return [make("h2", { text: `${kind[0].toUpperCase()}${kind.slice(1)}` }), make("ol", { class: "text-cards", "aria-label": `${kind} examples` }, ...cards)];
  });
  container.replaceChildren(legend, ...parts.flat());
  for (const query of container.querySelectorAll(".query")) showInBox(query);
}

// Scroll a long text to its query.
function showInBox(query) {
  const box = query.closest(".written");
  const below = query.getBoundingClientRect().bottom - box.getBoundingClientRect().top;
  if (below > box.clientHeight) box.scrollTop = below - box.clientHeight / 2;
}

function cardOf({ text, value, query, tokens, weights }) {
  const name = `text ${text}`;
  const look = (place) => {
    byId("readout").textContent = place === null ? "" : `${name}: "${tokens[query]}" gives "${tokens[place]}" ${fixed(weights[place], 3)}`;
  };
  const written = writtenText(tokens, {
    label: name,
    shareAt: (i) => weights[i] ?? 0,
    titleAt: (i) => fixed(weights[i], 3),
    onLook: look,
  });
  written.elements[query]?.classList.add("query");
  return make("li", {}, make("p", { class: "quiet", text: `${name}: ${scalar(value)}` }), written.text);
}
