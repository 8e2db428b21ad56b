// A text whose tokens are shaded by a measure; the pointer and the arrow keys read the tokens.

import { make, makeToken, moved } from "./elements.js";
import { shade } from "../values/shades.js";

// `label` names the text, `shareAt` and `titleAt` give the shade and the tooltip of a token. `onLook` is told the
// position of the token that is looked at, or null. Returns the element and those of the tokens.
export function writtenText(tokens, { label, shareAt, titleAt, onLook }) {
  const elements = tokens.map((token, i) => {
    const element = make("span", { class: "token" }, makeToken(token));
    shade(element, shareAt(i));
    element.title = titleAt(i);
    return element;
  });
  const text = make("div", { class: "written", tabindex: 0, role: "group", "aria-label": `${label}; arrow keys read the tokens` }, ...elements);
  text.addEventListener("pointerover", ({ target }) => {
    const place = elements.indexOf(target.closest(".token"));
    onLook(place < 0 ? null : place);
  });
  for (const event of ["pointerleave", "blur"]) text.addEventListener(event, () => onLook(null));
  let place = -1;
  text.addEventListener("keydown", (event) => {
    const to = moved(event, place, tokens.length, tokens.length);
    if (to === null) return;
    event.preventDefault();
    onLook((place = Math.max(0, to)));
  });
  return { text, elements };
}
