// The list of reports on the page, with the most recent answers.

import { chosen, sources } from "attn/page/chosen.js";
import { showReport } from "attn/page/show.js";
import { byId, fillSelect } from "attn/parts/elements.js";
import { shortened } from "attn/values/labels.js";

const MOST_REPORTS = 12;
const MOST_CHARACTERS = 1.5e8;

const questions = []; // the question that each report answers
const isAlike = (one, other) =>
  ["ask", "text", "heads", "queries", "keys"].every((name) => String(one[name] ?? "") === String(other[name] ?? ""));

export const questionShown = () => questions[sources.indexOf(chosen.source)];
// The index of the report that answered a question, or -1 if there is none or it was dropped.
export const placeOf = (question) => questions.findLastIndex((each) => isAlike(each, question));

export async function showAgain(index) {
  byId("report").value = index;
  await showReport(index);
}

const isFull = () =>
  sources.length > MOST_REPORTS || sources.reduce((sum, { textContent }) => sum + textContent.length, 0) > MOST_CHARACTERS;

function forget(index) {
  sources.splice(index, 1);
  questions.splice(index, 1);
}

const MOST_OF_TEXT = 60;

// `why ·Paris, without 5:11: The capital of France is`
function nameOf({ ask, name, text, heads, queries, keys }) {
  const sought = keys?.length ? ` that look${queries.length ? ` from ${queries.join(" ")}` : ""} to ${keys.join(" ")}` : "";
  const without = heads?.length ? `${ask === "ablate" ? "" : ", without"} ${shortened(heads.join(", "))}` : "";
  const characters = Array.from(text);
  const start = characters.length > MOST_OF_TEXT ? `${characters.slice(0, MOST_OF_TEXT).join("")}…` : text;
  return `${name}${sought}${without}: ${start || "random tokens"}`;
}

// Add a report and show it. A longer generation replaces a shorter generation from the same text.
export async function addReport(question, textContent) {
  const shorter = question.ask === "generate" ? placeOf(question) : -1;
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
