// What is selected: beside the picture, or in a sheet from below if the window is too narrow.

import { byId } from "../parts/elements.js";

const SPACE = 12; // pixels between what was selected and the sheet
const hasSheet = matchMedia("(max-width: 1039.98px)");

let selectedFrom = null; // where the focus returns to

// Show that something is selected, without hiding it.
export function openSheet() {
  if (!byId("selected").contains(document.activeElement)) selectedFrom = document.activeElement;
  byId("selected").classList.remove("closed");
  byId("selected").classList.add("open");
  if (!hasSheet.matches || selectedFrom === document.body) return;
  const marked = selectedFrom.querySelector(".frame:not([hidden])") ?? selectedFrom;
  const { top, bottom } = marked.getBoundingClientRect();
  const hidden = bottom + SPACE - byId("selected").getBoundingClientRect().top;
  if (hidden > 0) scrollBy({ top: Math.min(hidden, Math.max(0, top - SPACE)) });
}

// Returns true if there was a sheet to close. What was selected stays selected; the next readout is shown again.
export function closeSheet() {
  const sheet = byId("selected");
  const isSheet = hasSheet.matches && sheet.classList.contains("open");
  const hasFocus = sheet.contains(document.activeElement);
  sheet.classList.remove("open");
  sheet.classList.add("closed");
  if (hasFocus && selectedFrom?.isConnected) selectedFrom.focus();
  return isSheet;
}

export function listenToSheet() {
  byId("close-selected").addEventListener("click", closeSheet);
  new MutationObserver(() => byId("selected").classList.remove("closed")).observe(byId("readout"), { childList: true });
}
