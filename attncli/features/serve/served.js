// The page of a server: the text box, the questions about its text, and the model's answers.

import { chosen, start } from "attn/page/chosen.js";
import { open } from "attn/page/page.js";
import { run } from "attn/page/show.js";
import { byId, make, makeToken } from "attn/parts/elements.js";
import { askServer, isAlive, Lost, stopAnswer } from "./answers.js";
import { addReport, placeOf, questionShown, showAgain } from "./history.js";
import { listenToRemoval, out } from "./removal.js";

const { asked } = start;
const SECONDS_BETWEEN_LOOKS = 4;
const MOST_IN_ADDRESS = 30_000;
const MORE_TOKENS = 10;
const MOST_BEFORE = 240; // characters of the text shown before generated text
const KEYS = {
  "Enter, in the text": "show what each head does on the text (Shift+Enter starts a new line)",
  a: "remove the selected head, or restore it",
};

let text = ""; // the text of the last question
let written = { text: "", shown: "", count: 0, of: null };
let nextOf = null; // the text and the removed heads for which the page shows next tokens
const begun = new Map(); // the running questions by name, with their start times
const waiting = new Set(); // the questions that wait for another page's answer
const shares = new Map(); // the share of each answer that is done
const STOPPED = ["generating", "ablating"];
const stopped = new Set(); // the questions that the user has stopped, until their answers end
let ended = ""; // the outcome of the last question that was stopped

const can = (ask) => asked.asks.includes(ask);

// A key for the text and the removed heads of an answer.
const about = (of, heads = [...out]) => JSON.stringify([of, heads]);
const boxText = () => byId("asked-text").value;

// Grey out answers for another text than the one in the box, or for other removed heads.
function markOld() {
  const mark = (id, isOld) => byId(id).toggleAttribute("inert", isOld);
  const isWritten = written.of === about(boxText());
  mark("written", !isWritten);
  mark("next-box", nextOf !== about(boxText()) && !(isWritten && nextOf === about(boxText() + written.text)));
}

function showState() {
  const [name, since] = [...begun].at(-1) ?? [];
  const seconds = name ? Math.floor((performance.now() - since) / 1000) : 0;
  const waits = name && waiting.has(name) ? ", waiting for another page" : "";
  const share = shares.has(name) ? ` ${Math.floor(100 * shares.get(name))} %,` : "";
  byId("asked-state").textContent = name ? `${name}${waits} …${share}${seconds ? ` ${seconds} s` : ""}` : ended;
  byId("stop").hidden = !STOPPED.some((each) => begun.has(each));
}

function showTrouble(line) {
  byId("asked-trouble").hidden = !line;
  byId("asked-trouble").textContent = line ?? "";
}

function showLost(line) {
  byId("lost").hidden = !line;
  byId("lost").textContent = line ?? "";
}

// Ask a question and pass on each line of the answer; return true if the answer is complete.
async function ask(name, question, take) {
  const since = performance.now();
  begun.delete(name);
  begun.set(name, since);
  showState();
  let [isReport, reported] = [false, ""];
  let wasAnswered = true;
  try {
    await askServer(question, async (line) => {
      showLost(null);
      if (isReport) return addReport({ ...question, name: reported }, line);
      const said = JSON.parse(line);
      isReport = Boolean(said.report);
      reported = said.name;
      if (said.error && (question.text === text || question.keys)) showTrouble(said.error);
      if (said.share !== undefined) shares.set(name, said.share);
      if (said.waits !== undefined) waiting[said.waits ? "add" : "delete"](name);
      showState();
      wasAnswered &&= !said.error && !said.replaced && !said.stopped;
      take?.(said);
    });
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    wasAnswered = false;
    showLost(error.message);
  } finally {
    if (begun.get(name) === since) {
      for (const each of [begun, waiting, shares]) each.delete(name);
    }
    showState();
    const { dataset } = document.documentElement;
    dataset[question.ask] = Number(dataset[question.ask] ?? 0) + 1;
  }
  return wasAnswered;
}

function stop() {
  for (const name of STOPPED) if (begun.has(name)) stopped.add(name);
  return stopAnswer();
}

// Once an answer has ended: if the user stopped it, show its outcome.
function sayStopped(name, line) {
  if (!stopped.delete(name)) return;
  ended = line;
  showState();
}

// The text of the current entry in the browser's history, or null for an address without a text.
const textOfEntry = () => history.state?.text ?? new URLSearchParams(location.hash.slice(1)).get("text");

// Use the text in the box from now on. A new text adds an entry to the browser's history, for the Back button.
function takeText() {
  const isOther = textOfEntry() !== null && textOfEntry() !== boxText();
  text = boxText();
  const address = new URLSearchParams({ text }).toString();
  const isShort = text && address.length < MOST_IN_ADDRESS;
  history[isOther ? "pushState" : "replaceState"]({ text }, "", isShort ? `#${address}` : location.pathname);
  showTrouble(null);
  ended = "";
  if (written.of !== about(text)) byId("written").hidden = true;
  markOld();
  byId("next-box").hidden ||= byId("next-box").inert;
}

// Back and Forward: show the text of the entry, with its report if the page still has it.
function showEntry() {
  const of = textOfEntry() ?? asked.text;
  if (of === text) return;
  byId("asked-text").value = of;
  fitBox();
  const index = placeOf({ ask: "heads", text: of, heads: [...out] });
  if (index < 0) return askHeads();
  takeText();
  run(showAgain(index).then(askNext));
}

function askHeads() {
  takeText();
  const asking = ask("heads", { ask: "heads", text, heads: [...out] });
  run(asking.then((wasAnswered) => wasAnswered && askNext()));
}

// Ask for the next tokens unless the page shows them: after the generated text, if there is any.
function askNext() {
  const more = written.of === about(text) ? written.text : "";
  const [of, heads] = [text + more, [...out]];
  if (!can("next") || !of || nextOf === about(of)) return;
  run(
    ask("next token", { ask: "next", text: of, heads }, ({ next }) => {
      // If the text or the heads have changed, a newer question is on its way.
      if (next && of.startsWith(text) && String(heads) === String([...out])) showNext(next, of, heads);
    }),
  );
}

const percent = (share) => (100 * share).toFixed(share < 0.1 ? 2 : 1);

function showNext(tokens, of, heads) {
  nextOf = about(of, heads);
  byId("next-box").hidden = !tokens.length;
  const after = of === text ? "" : " after the generated text";
  const without = heads.length === 1 ? heads[0] : `${heads.length} heads`;
  const change = heads.length ? `: with all heads → without ${without}` : "";
  byId("next-title").textContent = `Next token${after}${change}`;
  byId("next-tokens").replaceChildren(
    ...tokens.map(({ token, id, probability, without }) => {
      const isChanged = without !== undefined;
      const numbers = isChanged ? `${percent(probability)} → ${percent(without)} %` : `${percent(probability)} %`;
      const label = make("span", { class: "probability", text: numbers });
      const title = can("why") ? "Explain this token: show what each head adds to its logit (· is a space, ↵ a line break)" : "";
      const button = make("button", { type: "button", title }, makeToken(token), label);
      button.style.setProperty("--share", probability);
      button.style.setProperty("--without", without ?? 0);
      button.classList.toggle("changed", isChanged);
      button.disabled = !can("why");
      button.addEventListener("click", () => askWhy(id, of));
      return make("li", {}, button);
    }),
  );
  markOld();
}

function askWhy(token = null, of = boxText()) {
  takeText();
  run(ask("why", { ask: "why", text: of, token, heads: [...out] }).then(askNext));
}

// Ask which heads look from some tokens to others, if the page has no weights of single tokens.
function askWeight({ from, to }) {
  const { text: of, heads } = questionShown();
  const question = { ask: "heads", text: of, heads, queries: from, keys: to };
  const names = { from: byId("from").value, to: byId("to").value };
  return ask("heads", question).then((wasAnswered) => {
    if (!wasAnswered) return;
    chosen.sought = { from, to };
    for (const [id, value] of Object.entries(names)) byId(id).value = value;
  });
}

// Show the maps of the text that a table or grid of heads describes; return true if that succeeds.
async function openReportOfHeads() {
  const { ask: kind, text: of, heads } = questionShown();
  const question = { ask: "heads", text: of, heads: kind === "ablate" ? [] : heads }; // the loss with all heads is the reference
  const index = placeOf(question);
  if (index >= 0) await showAgain(index);
  else await ask("heads", question);
  return questionShown().ask === "heads";
}

function askAblate() {
  takeText();
  run(
    ask("ablating", { ask: "ablate", text, heads: [...out] }).then((wasAnswered) => {
      sayStopped("ablating", wasAnswered ? "" : "ablation stopped without a result");
      askNext();
    }),
  );
}

// Generate more tokens after the text; tokens generated earlier are generated again, identically.
function write(more) {
  takeText();
  const [of, heads] = [about(text), [...out]];
  const before = written.of === of ? written : { shown: "", count: 0 };
  let now = "";
  for (const id of ["write-one", "write-ten"]) byId(id).disabled = true;
  const question = { ask: "generate", text, steps: before.count + more, heads };
  const writing = ask("generating", question, (said) => {
    now += said.written ?? "";
    if (of !== about(text)) return;
    if (said.written && now.length > before.shown.length) showWritten(now, of);
    if (said.count === undefined) return;
    written = { ...said, of };
    showWritten(said.shown, of);
  });
  run(
    writing.then(() => {
      const count = written.of === of ? written.count - before.count : 0;
      sayStopped("generating", count < more ? `generation stopped after ${count} of ${more} tokens` : "");
      askNext();
    }).finally(() => {
      for (const id of ["write-one", "write-ten"]) byId(id).disabled = false;
    }),
  );
}

function showWritten(what, of) {
  byId("written").hidden = false;
  const before = Array.from(asked.continues ? text : ""); // the text of an encoder is not continued
  byId("written-before").textContent =
    before.length > MOST_BEFORE ? `…${before.slice(-MOST_BEFORE).join("")}` : before.join("");
  byId("written-take").hidden = !asked.continues;
  byId("written-text").textContent = what.replaceAll("\n", "↵\n");
  byId("written-line").scrollTop = byId("written-line").scrollHeight;
  byId("written").inert = of !== about(boxText());
}

function useWritten() {
  byId("asked-text").value = text + written.text;
  fitBox();
  byId("written").hidden = true;
  askHeads();
}

// Fit the height of the box to its text, up to the limit in the style sheet.
function fitBox() {
  const box = byId("asked-text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
}

// Check regularly if the server still runs, because a server that has stopped sends nothing.
async function lookAfterServer() {
  if (!document.hidden && !begun.size) {
    try {
      await isAlive();
      showLost(null);
    } catch (error) {
      showLost(error.message);
    }
  }
  setTimeout(lookAfterServer, 1000 * SECONDS_BETWEEN_LOOKS);
}

async function openAsking() {
  await open();
  byId("controls").hidden = true; // there is no map yet
  byId("asked-model").textContent = asked.model;
  document.title = `attn: ${asked.model}`;
  byId("asked-remark").hidden = !asked.remark;
  byId("asked-remark").textContent = asked.remark;
  byId("ask-why").hidden = !can("why");
  for (const id of ["write-one", "write-ten"]) byId(id).hidden = !can("generate");
  byId("asked-text").value = textOfEntry() ?? asked.text;
  addEventListener("popstate", showEntry);
  byId("asked-text").addEventListener("input", () => (fitBox(), markOld()));
  fitBox();
  byId("question").addEventListener("submit", (event) => (event.preventDefault(), askHeads()));
  byId("asked-text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    askHeads();
  });
  byId("ask-why").addEventListener("click", () => askWhy());
  byId("ask-ablate").addEventListener("click", askAblate);
  byId("write-one").addEventListener("click", () => write(1));
  byId("write-ten").addEventListener("click", () => write(MORE_TOKENS));
  byId("stop").addEventListener("click", () => run(stop()));
  const canAskWeight = () => questionShown()?.ask === "heads";
  Object.assign(chosen, { canAskWeight, askWeight, openReportOfHeads });
  byId("written-take").addEventListener("click", useWritten);
  for (const [key, does] of Object.entries(KEYS))
    byId("help").append(make("dt", { text: key }), make("dd", { text: does }));
  listenToRemoval(() => (markOld(), askNext()));
  setInterval(showState, 1000);
  lookAfterServer();
  askHeads();
}

run(openAsking());
