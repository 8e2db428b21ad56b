// What this tab asks the server, and the lines that answer it.

const TAB = crypto.randomUUID();

// The server does not answer, or no longer knows this page.
export class Lost extends Error {}

const GONE =
  "The server has ended, or cannot be reached: start attn serve again, with the same --model, and open its " +
  "new link. What is here stays, and the text is in this page's address.";
const STRANGER =
  "The server does not know this page: it was started again, or cookies are off. Open the link that attn " +
  "serve printed.";

const MOST_BYTES = 2 ** 20; // as the server takes
const TOO_LONG = "text: is too long to be sent (1 MB at most)";
const UNANSWERED = "the server has too much to do, and did not answer: ask again";

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

// Hand over each line of the answer, one after the other, as soon as it is there.
export async function askServer(question, take) {
  const body = JSON.stringify({ tab: TAB, ...question });
  if (new Blob([body]).size > MOST_BYTES) return take(JSON.stringify({ error: TOO_LONG }));
  const response = await posted("ask", body);
  if (!response.ok) return take(JSON.stringify({ error: `${UNANSWERED} (${response.status})` }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let begun = []; // a line may be long: it is put together once
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
