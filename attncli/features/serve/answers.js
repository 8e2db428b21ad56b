// Sends the questions of this tab to the server, and reads the lines that answer them.

const TAB = crypto.randomUUID();

// Thrown if the server does not answer, or no longer recognises this page.
export class Lost extends Error {}

const GONE =
  "The server has stopped or cannot be reached. Start attn serve again with the same --model, and open its " +
  "new link. The reports on this page remain, and its address contains the text.";
const STRANGER =
  "The server does not recognise this page: it was restarted, or cookies are disabled. Open the link that " +
  "attn serve printed.";

const MOST_BYTES = 2 ** 20; // the server's limit
const TOO_LONG = "text: is too long to send (at most 1 MB)";
const UNANSWERED = "the server is too busy to answer: ask again later";

async function reached(address, options) {
  let response;
  try {
    response = await fetch(address, { cache: "no-store", ...options });
  } catch {
    throw new Lost(GONE);
  }
  if (response.status === 403) throw new Lost(STRANGER);
  return response;
}

const posted = (address, body) =>
  reached(address, { method: "POST", headers: { "Content-Type": "application/json" }, body });

export const isAlive = () => reached("alive", {});
export const stopAnswer = () => posted("stop", JSON.stringify(TAB));

// Pass on each line of the answer as soon as it arrives.
export async function askServer(question, take) {
  const body = JSON.stringify({ tab: TAB, ...question });
  if (new Blob([body]).size > MOST_BYTES) return take(JSON.stringify({ error: TOO_LONG }));
  const response = await posted("ask", body);
  if (!response.ok) return take(JSON.stringify({ error: `${UNANSWERED} (${response.status})` }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = []; // the parts of a line, which are joined once because the line may be long
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch {
      throw new Lost(GONE);
    }
    if (part.done) break;
    const [first, ...others] = part.value.split("\n");
    begun.push(first);
    for (const other of others) {
      await take(begun.join(""));
      begun = [other];
    }
  }
  if (begun.join("")) throw new Lost(GONE);
}
