// Sound player: the wave and its spectrogram over seconds, with a playback line, and words that play on a click.

import { make, makeToken } from "./elements.js";
import { Picture } from "./picture.js";
import { timeAxis } from "./time_axis.js";

const MEDIA = { OggS: "audio/ogg", fLaC: "audio/flac", RIFF: "audio/wav", FORM: "audio/aiff" };
const [WIDTH, WAVE_HEIGHT] = [900, 90];
const DECODED_RATE = 8000; // samples per second, enough for the outline of a wave

let address = null; // URL of the sound of the current report
let playing = null;

function bytesOfSound(sound) {
  return sound ? Uint8Array.from(atob(sound), (character) => character.charCodeAt(0)) : null;
}

function addressOf(bytes) {
  if (address) URL.revokeObjectURL(address);
  address = null;
  if (!bytes) return null;
  const type = MEDIA[String.fromCharCode(...bytes.slice(0, 4))] ?? "audio/mpeg";
  address = URL.createObjectURL(new Blob([bytes], { type }));
  return address;
}

// Draw the lowest and highest samples of each column. Returns false if the browser cannot decode the sound.
async function drawWave(canvas, bytes) {
  const context = new OfflineAudioContext(1, 1, DECODED_RATE);
  const sound = await context.decodeAudioData(bytes.slice().buffer).catch(() => null);
  if (!sound) return false;
  const samples = sound.getChannelData(0);
  Object.assign(canvas, { width: WIDTH, height: WAVE_HEIGHT });
  const pen = canvas.getContext("2d");
  pen.fillStyle = getComputedStyle(canvas).color;
  const largest = samples.reduce((most, sample) => Math.max(most, Math.abs(sample)), 1e-9);
  for (let x = 0; x < WIDTH; x++) {
    const [first, end] = [x, x + 1].map((column) => Math.floor((column * samples.length) / WIDTH));
    let [low, high] = [0, 0];
    for (let i = first; i < end; i++) {
      low = Math.min(low, samples[i]);
      high = Math.max(high, samples[i]);
    }
    const [top, bottom] = [high, low].map((sample) => (WAVE_HEIGHT / 2) * (1 - sample / largest));
    pen.fillRect(x, top, 1, Math.max(1, bottom - top));
  }
  return true;
}

// Play from one second to another, or to the end.
function play(from, to = Infinity) {
  if (!playing) return;
  Object.assign(playing, { until: to });
  playing.audio.currentTime = from;
  playing.audio.play().catch(() => {}); // the browser itself reports an unsupported format
}

// Start of a token in the sound, in seconds.
export function playToken(picture, token) {
  const box = token === null ? null : picture?.boxes[token];
  if (picture?.seconds && box) play(box[0] * picture.seconds, (box[0] + 1) * picture.seconds);
}

export async function showSound(container, report) {
  const picture = report.pictures.find(({ seconds }) => seconds);
  container.replaceChildren();
  container.hidden = !picture;
  playing?.audio.pause();
  playing = null;
  const bytes = bytesOfSound(picture?.sound);
  const source = addressOf(bytes);
  if (!picture) return;
  const audio = make("audio", { controls: "", "aria-label": `Sound ${picture.name}`, preload: "auto" });
  if (source) audio.src = source;
  const words = Array.isArray(report.statistics.words) ? report.statistics.words : [];
  const line = make("div", { class: "now" });
  const strip = make("div", { class: "heard" });
  const canvas = make("canvas", { "aria-hidden": "true" });
  const wave = make("canvas", { class: "wave", role: "img", "aria-label": `Wave of ${picture.name}, ${picture.seconds.toFixed(2)} seconds` });
  const stage = make("div", { class: "overlay sound" }, wave, canvas, strip, line);
  const list = make("div", { class: "spoken", role: "group", "aria-label": "words" });
  const buttons = words.map((word) => {
    const element = make("button", { type: "button", title: `${word.begin.toFixed(2)}-${word.end.toFixed(2)} s` }, makeToken(word.word));
    element.addEventListener("click", () => play(word.begin, word.end));
    for (const type of ["pointerenter", "focus"]) element.addEventListener(type, () => mark(word));
    for (const type of ["pointerleave", "blur"]) element.addEventListener(type, () => mark(null));
    return element;
  });
  list.append(...buttons);
  const percent = (seconds) => `${(100 * Math.min(1, seconds / picture.seconds)).toFixed(3)}%`;

  function mark(word) {
    strip.hidden = !word;
    if (!word) return;
    strip.style.left = percent(word.begin);
    strip.style.width = percent(word.end - word.begin);
  }

  function step() {
    const now = audio.currentTime;
    line.style.left = percent(now);
    if (now >= playing?.until) {
      audio.pause();
      playing.until = Infinity;
    }
    words.forEach(({ begin, end }, i) => buttons[i].classList.toggle("spoken-now", begin <= now && now < end));
    if (!audio.paused && playing?.audio === audio) requestAnimationFrame(step);
  }

  for (const type of ["play", "seeked", "pause"]) audio.addEventListener(type, step);
  stage.addEventListener("pointermove", (event) => {
    const at = secondAt(event);
    const under = words.findIndex(({ begin, end }) => begin <= at && at < end);
    buttons.forEach((button, i) => button.classList.toggle("under", i === under));
    mark(words[under] ?? null);
  });
  stage.addEventListener("pointerleave", () => {
    for (const button of buttons) button.classList.remove("under");
    mark(null);
  });
  stage.addEventListener("click", (event) => play(secondAt(event)));

  function secondAt(event) {
    const area = stage.getBoundingClientRect();
    return ((event.clientX - area.left) / area.width) * picture.seconds;
  }

  mark(null);
  // The maps of heads show the spectrogram as well, so it is drawn here only with words.
  canvas.hidden = !words.length;
  if (words.length) {
    const drawn = new Picture({ ...picture });
    await drawn.load();
    const { width, height, pixels } = drawn.inSize(WIDTH);
    Object.assign(canvas, { width, height });
    canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  }
  container.append(stage);
  wave.hidden = !bytes || !(await drawWave(wave, bytes));
  if (wave.hidden && canvas.hidden) stage.remove();
  else container.append(timeAxis(picture.seconds));
  if (source) container.append(audio);
  else container.append(make("p", { class: "quiet", text: `${picture.name} cannot be played here: it is too large for the page, or the report does not contain it.` }));
  container.append(list);
  playing = { audio, until: Infinity };
}
