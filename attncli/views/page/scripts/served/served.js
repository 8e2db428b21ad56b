// A page that answers back: the text that is typed, what is asked about it, and what the model says.

import { start } from "../page/chosen.js";
import { open } from "../page/page.js";
import { run } from "../page/show.js";
import { byId, make, makeToken } from "../parts/elements.js";
import { askServer, isAlive, Lost, stopWriting } from "./answers.js";
import { addReport } from "./history.js";
import { listenToRemoval, out } from "./removal.js";

const { asked } = start;
const SECONDS_BETWEEN_LOOKS = 4;
const MOST_IN_ADDRESS = 30_000;
const MORE_TOKENS = 10;
const MOST_BEFORE = 240; // characters of the text, before what is written
const KEYS = {
  "Enter, in the text": "what each head does on it; Shift+Enter is a new line",
  a: "take out the head that is shown, or put it back",
};

let text = ""; // what was asked last
let written = { text: "", shown: "", count: 0, of: null };
const begun = new Map(); // what is being asked, and since when

const can = (ask) => asked.asks.includes(ask);

function showState() {
  const [name, since] = [...begun].at(-1) ?? [];
  const seconds = name ? Math.floor((performance.now() - since) / 1000) : 0;
  byId("asked-state").textContent = name ? `${name} …${seconds ? ` ${seconds} s` : ""}` : "";
}

function showTrouble(line) {
  byId("asked-trouble").hidden = !line;
  byId("asked-trouble").textContent = line ?? "";
}

function showLost(line) {
  byId("lost").hidden = !line;
  byId("lost").textContent = line ?? "";
}

// Ask, and hand over each line that came; one that announces a report comes with it.
async function ask(name, question, take) {
  const since = performance.now();
  begun.delete(name);
  begun.set(name, since);
  showState();
  let isReport = false;
  let wasAnswered = true;
  try {
    await askServer(question, async (line) => {
      showLost(null);
      if (isReport) return addReport(question, line);
      const said = JSON.parse(line);
      isReport = Boolean(said.report);
      if (said.error && question.text === text) showTrouble(said.error);
      wasAnswered &&= !said.error && !said.replaced;
      take?.(said);
    });
  } catch (error) {
    if (!(error instanceof Lost)) throw error;
    wasAnswered = false;
    showLost(error.message);
  } finally {
    if (begun.get(name) === since) begun.delete(name);
    showState();
    const { dataset } = document.documentElement;
    dataset[question.ask] = Number(dataset[question.ask] ?? 0) + 1;
  }
  return wasAnswered;
}

// The text of the box, which is what everything is about from now on.
function takeText() {
  text = byId("asked-text").value;
  const address = new URLSearchParams({ text }).toString();
  const isShort = text && address.length < MOST_IN_ADDRESS;
  history.replaceState(null, "", isShort ? `#${address}` : location.pathname);
  showTrouble(null);
  byId("written").hidden = written.of !== text;
}

function askHeads() {
  takeText();
  byId("next-box").hidden = true;
  run(ask("heads", { ask: "heads", text }).then((wasAnswered) => wasAnswered && askNext()));
}

function askNext() {
  if (!can("next") || !text) return;
  const [about, heads] = [text, [...out]];
  run(
    ask("next token", { ask: "next", text, heads }, ({ next }) => {
      // A newer question is on its way where these are others now.
      if (next && about === text && String(heads) === String([...out])) showNext(next, heads);
    }),
  );
}

const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 2 : 1)} %`;

function showNext(tokens, heads) {
  byId("next-box").hidden = !tokens.length;
  const without = heads.length === 1 ? heads[0] : `${heads.length} of them`;
  byId("next-title").textContent = heads.length ? `Next token: with all heads → without ${without}` : "Next token";
  byId("next-tokens").replaceChildren(
    ...tokens.map(({ token, answer, probability, without }) => {
      const isChanged = without !== undefined;
      const numbers = isChanged ? `${percent(probability)} → ${percent(without)}` : percent(probability);
      const label = make("span", { class: "probability", text: numbers });
      const button = make("button", { type: "button", title: "Why this token" }, makeToken(token), label);
      button.style.setProperty("--share", probability);
      button.style.setProperty("--without", without ?? 0);
      button.classList.toggle("changed", isChanged);
      button.disabled = !can("why");
      button.addEventListener("click", () => askWhy(answer));
      return make("li", {}, button);
    }),
  );
}

function askWhy(answer = null) {
  takeText();
  run(ask("why", { ask: "why", text, answer }));
}

function askAblate() {
  takeText();
  run(ask("what is lost", { ask: "ablate", text, heads: [...out] }));
}

// So many tokens more after the text; what was written before is written again, the same.
function write(more) {
  takeText();
  const before = written.of === text ? written : { shown: "", count: 0 };
  const about = text;
  let now = "";
  for (const id of ["write-one", "write-ten"]) byId(id).disabled = true;
  byId("stop-writing").hidden = false;
  const writing = ask("writing", { ask: "generate", text, steps: before.count + more }, (said) => {
    now += said.written ?? "";
    if (about !== text) return;
    if (said.written && now.length > before.shown.length) showWritten(now);
    if (said.count === undefined) return;
    written = { ...said, of: about };
    showWritten(said.shown);
  });
  run(
    writing.finally(() => {
      for (const id of ["write-one", "write-ten"]) byId(id).disabled = false;
      byId("stop-writing").hidden = true;
    }),
  );
}

function showWritten(what) {
  byId("written").hidden = false;
  const before = Array.from(asked.continues ? text : ""); // what an encoder read stands by itself
  byId("written-before").textContent =
    before.length > MOST_BEFORE ? `…${before.slice(-MOST_BEFORE).join("")}` : before.join("");
  byId("written-take").hidden = !asked.continues;
  byId("written-text").textContent = what;
  byId("written-line").scrollTop = byId("written-line").scrollHeight;
}

function useWritten() {
  byId("asked-text").value = text + written.text;
  byId("written").hidden = true;
  askHeads();
}

// A server that has ended says nothing by itself.
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
  byId("controls").hidden = true; // of no map yet
  byId("asked-model").textContent = asked.model;
  document.title = `attn: ${asked.model}`;
  byId("asked-remark").hidden = !asked.remark;
  byId("asked-remark").textContent = asked.remark;
  byId("ask-why").hidden = !can("why");
  for (const id of ["write-one", "write-ten"]) byId(id).hidden = !can("generate");
  const given = new URLSearchParams(location.hash.slice(1)).get("text");
  byId("asked-text").value = given ?? asked.text;
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
  byId("stop-writing").addEventListener("click", () => run(stopWriting()));
  byId("written-take").addEventListener("click", useWritten);
  for (const [key, does] of Object.entries(KEYS))
    byId("help").append(make("dt", { text: key }), make("dd", { text: does }));
  listenToRemoval(askNext);
  setInterval(showState, 1000);
  lookAfterServer();
  askHeads();
}

run(openAsking());
