// What is shown: groups of check boxes, the search, the row whose series stands alone, and the link that keeps all of it.
const marks = ["●", "■", "▲", "◆", "▼", "✚", "✖", "◀", "▶", "⬟", "⬢", "⬧"];

const groups = [
  { key: "dtype", title: "dtype", of: (i) => rows.dtype[i], ofRoof: (roof) => roof.dtype },
  { key: "op", title: "op", of: (i) => rows.op[i] },
  { key: "provider", title: "provider", of: (i) => rows.provider[i] },
  { key: "run", title: "run", of: (i) => content.runs[rows.run[i]].run_id },
  { key: "machine", title: "machine", of: (i) => content.machines[rows.machine[i]].slug, ofRoof: (roof) => content.machines[roof.machine].slug },
  { key: "kind", title: "kind of roof", ofRoof: (roof) => roof.kind },
  { key: "level", title: "level of memory", ofRoof: (roof) => roof.level },
  { key: "layer", title: "layer", always: content.estimates.length ? ["estimates"] : [] },
];

for (const group of groups) {
  const counts = new Map();
  if (group.of) for (let i = 0; i < rowCount; i++) counts.set(group.of(i), (counts.get(group.of(i)) ?? 0) + 1);
  if (group.ofRoof) for (const roof of content.roofs) if (group.ofRoof(roof) !== null) counts.set(group.ofRoof(roof), counts.get(group.ofRoof(roof)) ?? 0);
  group.values = [...(group.always ?? []), ...counts.keys()];
  group.counts = counts;
  state.hidden[group.key] = new Set();
}
function usualHidden() {
  for (const group of groups) state.hidden[group.key].clear();
  const used = new Set(content.shown_dtypes);
  for (const dtype of groups[0].values) if (!used.has(dtype) && !groups[0].counts.get(dtype)) state.hidden.dtype.add(dtype);
}
usualHidden();

let texts = null; // made when the first word is searched for
function searched(i) {
  texts ??= Array.from({ length: rowCount }, (_, at) => columns.map((column) => (column.number ? "" : column.text(at))).concat(rows.options[at], rows.reason[at] ?? "").join(" ").toLowerCase());
  return texts[i];
}

const isRoofShown = (roof) => groups.every((group) => !group.ofRoof || group.ofRoof(roof) === null || !state.hidden[group.key].has(group.ofRoof(roof)));

function shownRows() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  const series = state.isolated && state.picked !== null ? seriesOf(state.picked) : null;
  const active = groups.filter((group) => group.of && state.hidden[group.key].size);
  const found = [];
  for (let i = 0; i < rowCount; i++) {
    if (active.some((group) => state.hidden[group.key].has(group.of(i)))) continue;
    if (words.some((word) => !searched(i).includes(word))) continue;
    if (series !== null && seriesOf(i) !== series) continue;
    found.push(i);
  }
  return found;
}

function drawFilters() {
  const shown = groups.filter((group) => group.values.length > (group.always ? 0 : 1));
  byId("groups").replaceChildren(...shown.map((group) => element("fieldset", {}, element("legend", { text: group.title }), ...group.values.map((value) => choice(group, value)))));
}

function choice(group, value) {
  const box = element("input", { type: "checkbox", onchange: () => {
    if (box.checked) state.hidden[group.key].delete(value);
    else state.hidden[group.key].add(value);
    update();
  } });
  box.checked = !state.hidden[group.key].has(value);
  const count = group.counts.get(value);
  const label = element("label", {}, box, ...swatch(group, value), element("span", { class: "name", text: value, title: value }));
  if (count) label.append(element("span", { class: "count", text: count.toLocaleString("en") }));
  const only = element("button", { type: "button", text: "only", "aria-label": `only ${value}`, onclick: () => {
    state.hidden[group.key] = new Set(group.values.filter((other) => other !== value));
    update();
  } });
  return element("div", { class: "choice" }, label, only);
}

function swatch(group, value) {
  const isColored = group.key === content.colored_by;
  const isShaped = group.key === content.shaped_by;
  if (!isColored && !isShaped) return [];
  const made = element("span", { class: "swatch", "aria-hidden": "true", text: isShaped ? marks[Math.max(0, content.shapes.indexOf(value)) % marks.length] : "●" });
  if (isColored) {
    const i = group.of ? rows.color?.findIndex((color, at) => color && group.of(at) === value) : -1;
    const roof = content.roofs.find((one) => group.ofRoof && group.ofRoof(one) === value);
    const colors = i >= 0 ? rows.color[i] : roof?.colors;
    if (colors) made.style.color = colors[isDark() ? 1 : 0];
  }
  return [made];
}

const isDark = () => !state.printing && (state.theme === "dark" || (state.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches));

// The link holds places of values and no names, so that it stays short and holds nothing to obey.
function linkText() {
  const kept = new URLSearchParams();
  for (const name of ["view", "theme", "query", "sort", "picked"]) if (state[name] !== null && state[name] !== "") kept.set(name, state[name]);
  if (state.descending) kept.set("descending", "1");
  if (state.isolated) kept.set("isolated", "1");
  if (state.first) kept.set("first", state.first);
  for (const group of groups) kept.set(`hide.${group.key}`, group.values.flatMap((value, at) => (state.hidden[group.key].has(value) ? [at] : [])).join("."));
  for (const [view, range] of Object.entries(state.ranges)) if (range) kept.set(`range.${view}`, range.flat().map((value) => value.toPrecision(6)).join(","));
  return kept.toString();
}

function keepLink() {
  history.replaceState(null, "", `#${linkText()}`);
}

function readLink() {
  const kept = new URLSearchParams(location.hash.slice(1));
  if (!kept.has("view")) return;
  if (views.some((view) => view.key === kept.get("view"))) state.view = kept.get("view");
  if (["auto", "light", "dark"].includes(kept.get("theme"))) state.theme = kept.get("theme");
  state.query = kept.get("query") ?? "";
  state.sort = columns.some((column) => column.key === kept.get("sort")) ? kept.get("sort") : null;
  state.descending = kept.has("descending");
  state.isolated = kept.has("isolated");
  const number = (name) => (/^\d+$/.test(kept.get(name) ?? "") ? Number(kept.get(name)) : null);
  state.picked = number("picked") !== null && number("picked") < rowCount ? number("picked") : null;
  state.first = number("first") ?? 0;
  for (const group of groups) {
    if (!kept.has(`hide.${group.key}`)) continue;
    const places = new Set((kept.get(`hide.${group.key}`) ?? "").split(".").filter(Boolean).map(Number));
    state.hidden[group.key] = new Set(group.values.filter((_, at) => places.has(at)));
  }
  for (const view of views) {
    const ends = (kept.get(`range.${view.key}`) ?? "").split(",").map(Number);
    if (ends.length === 4 && ends.every(Number.isFinite)) state.ranges[view.key] = [ends.slice(0, 2), ends.slice(2)];
  }
}
