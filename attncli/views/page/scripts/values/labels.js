// What stands at each index of an axis: a position and, where the axis has tokens, its token.

// The tokens along an axis, if that many are known.
export function tokensAlong(report, axis) {
  const side = axis.split("_")[0];
  if (side === "key") return report.context_tokens.length ? report.context_tokens : report.tokens;
  if (side === "query") return report.tokens.slice(report.first_query);
  if (["column", "source", "way"].includes(side)) return report.context_tokens;
  return side === "token" || side === "row" ? report.tokens : [];
}

export function axisLabels(report, axis, count) {
  const tokens = tokensAlong(report, axis);
  if (axis.endsWith("_block") && tokens.length > count) return blockLabels(tokens, count);
  const areTokens = tokens.length === count && !axis.endsWith("_block");
  const first = axis === "query" ? report.first_query : 0;
  return Array.from({ length: count }, (_, i) => ({
    position: String(first + i),
    token: areTokens ? tokens[i] : "",
  }));
}

// Blocks have as many tokens each as fit; the last one has the rest.
function blockLabels(tokens, count) {
  const size = Math.ceil(tokens.length / count);
  return Array.from({ length: count }, (_, i) => {
    const last = Math.min((i + 1) * size, tokens.length) - 1;
    const position = last > i * size ? `${i * size}–${last}` : String(last);
    return { position, token: tokens.slice(i * size, last + 1).join(" ") };
  });
}

const MOST_SHOWN = 24;
export const shortened = (text) => {
  const characters = Array.from(text);
  return characters.length > MOST_SHOWN ? `${characters.slice(0, MOST_SHOWN - 1).join("")}…` : text;
};
export const labelText = ({ position, token }) => (token ? `${position} ${shortened(token)}` : position);

// 5:11 for layer 5, head 11.
export const shortPlace = (place) => place.map(([, index]) => index).join(":");
// `batch 0, head 5:11`, of a layer and a head together; else `layer 5`.
export function placeText(place) {
  const last = place.slice(-2);
  const isHead = last.map(([axis]) => axis).join() === "layer,head";
  const named = (isHead ? place.slice(0, -2) : place).map(([axis, index]) => `${axis} ${index}`);
  return [...named, ...(isHead ? [`head ${shortPlace(last)}`] : [])].join(", ");
}

export function matrixTitle(tensor, place) {
  const axes = tensor.axes.slice(-2).join(" × ").replaceAll("_", " ");
  const where = tensor.shared.length ? `the same for every ${tensor.shared.join(" and ")}` : placeText(place);
  return `${tensor.name} (${axes})${where ? `, ${where}` : ""}`;
}

// Names of tokens on one line: those with a blank in them stand in quotes.
export function inLine(names) {
  return names.map((name) => (/\s/.test(name) ? `"${name.replaceAll('"', '""')}"` : name)).join(" ");
}

// The names of tokens in a line, as `inLine` writes it. Other names keep their quotes: "5" is no position.
export function namesIn(line) {
  const names = line.matchAll(/"((?:[^"]|"")+)"(?!\S)|\S+/g);
  return Array.from(names, ([name, quoted]) => (/\S\s+\S/.test(quoted) ? quoted.replaceAll('""', '"') : name));
}
