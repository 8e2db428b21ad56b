// The reports that were answered, in the list of reports of the page: the last of them are kept.

import { sources } from "../page/chosen.js";
import { showReport } from "../page/show.js";
import { byId, fillSelect } from "../parts/elements.js";

const MOST_REPORTS = 12;
const MOST_CHARACTERS = 1.5e8;

const headings = [];

const isFull = () =>
  sources.length > MOST_REPORTS || sources.reduce((sum, { textContent }) => sum + textContent.length, 0) > MOST_CHARACTERS;

// Add a report, and show it.
export async function addReport(heading, textContent) {
  sources.push({ textContent });
  headings.push(heading);
  while (sources.length > 1 && isFull()) {
    sources.shift();
    headings.shift();
  }
  const last = sources.length - 1;
  fillSelect(
    byId("report"),
    headings.map((text, i) => [i, text]),
    last,
  );
  byId("report-choice").hidden = sources.length < 2;
  byId("controls").hidden = false;
  await showReport(last);
}
