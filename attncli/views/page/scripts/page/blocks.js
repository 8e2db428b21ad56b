// The blocks of a report, each a section that the function of its name fills.

import { chosen } from "./chosen.js";
import { byId } from "../parts/elements.js";

// By name: the function that fills the section, and may give one that shows there the head at a place.
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

// Shows a head in the blocks that can; the first of their sections.
export function showInBlock(place) {
  for (const [, showHead] of ofHeads) showHead(place);
  return ofHeads[0]?.[0];
}
