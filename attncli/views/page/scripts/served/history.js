// The reports that were answered, in the list of reports of the page: the last of them are kept.

import { sources } from "../page/chosen.js";
import { showReport } from "../page/show.js";
import { byId, fillSelect } from "../parts/elements.js";
import { shortened } from "../values/labels.js";

const MOST_REPORTS = 12;
const MOST_CHARACTERS = 1.5e8;

const questions = []; // of each report

const isFull = () =>
  sources.length > MOST_REPORTS || sources.reduce((sum, { textContent }) => sum + textContent.length, 0) > MOST_CHARACTERS;

function forget(index) {
  sources.splice(index, 1);
  questions.splice(index, 1);
}

const nameOf = ({ ask, text }) => `${ask}: ${shortened(text) || "random tokens"}`;

// Add a report, and show it. What was written after a text takes the place of what was shorter.
export async function addReport(question, textContent) {
  const { ask, text } = question;
  const shorter = questions.findIndex((other) => ask === "generate" && other.ask === ask && other.text === text);
  if (shorter >= 0) forget(shorter);
  sources.push({ textContent });
  questions.push(question);
  while (sources.length > 1 && isFull()) forget(0);
  const last = sources.length - 1;
  fillSelect(
    byId("report"),
    questions.map((each, i) => [i, nameOf(each)]),
    last,
  );
  byId("report-choice").hidden = sources.length < 2;
  byId("controls").hidden = false;
  await showReport(last);
}
