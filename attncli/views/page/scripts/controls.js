// What a person chooses with lists, buttons and keys.

const THEMES = ["automatic", "light", "dark"];

function fillSortAndLayer() {
  const { tensor } = chosen;
  const sorts = figures().map(({ name }) => [name, words(name)]);
  fillSelect(byId("sort"), [["", "place"], ...sorts], chosen.sort);
  byId("sort-choice").hidden = !sorts.length;
  const numLayers = tensor.axes[0] === "layer" ? tensor.shape[0] : 0;
  fillSelect(
    byId("layer"),
    [["", "all"], ...Array.from({ length: numLayers }, (_, i) => [i, i])],
    chosen.layer,
  );
  byId("layer-choice").hidden = numLayers < 2;
}

function listen() {
  const onChange = (id, change) =>
    byId(id).addEventListener("change", ({ target }) => run(change(target.value)));
  onChange("report", (value) => showReport(Number(value)));
  onChange("tensor", (value) => showTensor(Number(value)));
  onChange("scale", (value) => ((chosen.scale = value), redraw()));
  onChange("range", (value) => ((chosen.range = value), redraw()));
  onChange("skip", (value) => {
    chosen.skip = Math.max(0, Math.floor(Number(value)) || 0);
    byId("skip").value = chosen.skip;
    return redraw();
  });
  onChange("sort", (value) => ((chosen.sort = value), arrangeOverview(), overview.mark(chosen.number)));
  onChange("layer", (value) => ((chosen.layer = value), arrangeOverview(), overview.mark(chosen.number)));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  sides.clear.addEventListener("click", letAllGo);
  byId("theme").addEventListener("click", ({ target }) => {
    const theme =
      THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "automatic") + 1) % THEMES.length];
    document.documentElement.dataset.theme = theme;
    target.textContent = `Theme: ${theme}`;
    if (matrix) showSources();
  });
  byId("help-button").addEventListener("click", ({ target }) => {
    byId("help").hidden = !byId("help").hidden;
    target.setAttribute("aria-expanded", !byId("help").hidden);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select") || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") letAllGo();
    if (event.key === ",") step(-1);
    if (event.key === ".") step(1);
  });
}

function step(by) {
  if (chosen.tensor?.count > 1) run(choose(overview.neighbour(chosen.number, by)));
}
