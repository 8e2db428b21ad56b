// Blocks of a report: sections of the page, each filled by a registered function.

import { chosen } from "./chosen.js";
import { byId } from "../parts/elements.js";

// Functions by block name. Each fills its section and may return a function that shows a head in it.
export const blocks = new Map();

let ofHeads = [];

export async function showBlocks(report) {
  for (const section of document.querySelectorAll(".block")) section.hidden = true;
  ofHeads = [];
  for (const [name, data] of Object.entries(report.blocks)) {
    const section = byId(name);
    section.hidden = false;
    const showHead = await blocks.get(name)(section, report, data);
    if (chosen.report !== report) return;
    if (showHead) ofHeads.push([section, showHead]);
  }
}

// Show a head in every block that can, and return the first such section.
export function showInBlock(place) {
  for (const [, showHead] of ofHeads) showHead(place);
  return ofHeads[0]?.[0];
}
