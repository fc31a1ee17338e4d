"use strict";
const byId = (id) => document.getElementById(id);
const { figures, dark, table } = JSON.parse(byId("content").textContent);
const isDark = matchMedia("(prefers-color-scheme: dark)");
const mostSeries = 8, letterWidth = 5.3; // of a legend, and of a label in pixels, on a telephone
const mostRows = 100; // in the table at once; a browser takes seconds for thousands
let sorted = { column: null, isUp: true };
let chosen = null;

// The figures are written in the colors of the light theme.
function draw() {
  for (const [name, figure] of Object.entries(figures)) {
    const text = JSON.stringify(figure);
    const { data, layout } = JSON.parse(isDark.matches ? text.replace(/#[0-9A-Fa-f]{6}\b/g, (color) => dark[color] ?? color) : text);
    if (data.some((series) => Array.isArray(series.marker?.size))) layout.showlegend = false; // all points of a profile look alike
    if (byId(name).clientWidth < 600) for (const tree of data.filter((each) => each.type === "icicle")) tree.texttemplate = "%{label}";
    if (byId(name).clientWidth < 600 && layout.legend) fitPhone(data, layout, byId(name).clientWidth);
    Plotly.react(name, data, layout, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] });
  }
}

// A legend of many series has no room on a telephone.
function fitPhone(data, layout, width) {
  layout.margin = { ...layout.margin, l: 60, r: 10 };
  layout.legend.font = { size: 10 };
  if (data.filter((series) => series.customdata).length > mostSeries) layout.showlegend = false;
  const [left, right] = layout.xaxis.range;
  for (const label of layout.annotations) {
    label.font.size = 9;
    const letters = Math.max(...label.text.split("<br>").map((line) => line.length));
    const room = ((label.x - left) / (right - left)) * (width - 55);
    if (label.name === "side" && label.xanchor === "right" && letters * letterWidth + 12 > room) label.visible = false;
    if (label.name === "slope" && letters * letterWidth > room) { // or it would cover the numbers of the axis
      Object.assign(label, { align: "left", xanchor: "left", yanchor: "top", xshift: 10 });
    }
  }
}

function element(tag, text, parent, attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

// The columns in sight: names that rows do not share, then what a row reached, then how it was measured. Long reasons are last.
const names = ["run", "op", "case", "dtype", "provider", "fill", "options", "status"];
const reached = [...names, "median", "% roof", "MFU", "bound", "flags"];
const firstOfOp = (row) => table.rows.find((other) => other.cells[table.titles.indexOf("op")] === row.cells[table.titles.indexOf("op")]);
const valuesOf = (column) => [...new Set(table.rows.map((row) => row.cells[column]).filter(Boolean))];
const isShared = (column) => names.includes(table.titles[column]) && table.rows.length > 1 &&
  table.rows.every((row) => row.cells[column] === (table.titles[column] === "options" ? firstOfOp(row) : table.rows[0]).cells[column]);
const place = (column) => (reached.includes(table.titles[column]) ? reached.indexOf(table.titles[column]) : reached.length + (table.titles[column] === "reason"));
const filled = [...table.titles.keys()].filter((column) => valuesOf(column).length);
const shared = filled.filter(isShared).map((column) => `${table.titles[column]} ${valuesOf(column).join(" or ")}`);
const columns = filled.filter((column) => !isShared(column)).sort((one, two) => place(one) - place(two));

const isNumber = (text) => /^±?[\d.]+(e[+-]\d+)?(%| [a-z]+)?$/.test(text);

function value(row, column) {
  const text = row.cells[column];
  if (table.titles[column] === "median") return row.median_s;
  return isNumber(text) ? parseFloat(text.replace("±", "")) : text;
}

function shownRows() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = table.rows.filter((row) => words.every((word) => row.cells.join(" ").toLowerCase().includes(word)));
  const { column, isUp } = sorted;
  if (column === null) return shown;
  const compare = (one, two) => (typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two), undefined, { numeric: true }));
  return shown.sort((one, two) => (isUp ? 1 : -1) * compare(value(one, column), value(two, column)));
}

function showTable() {
  const shown = shownRows(), body = byId("rows").tBodies[0];
  body.replaceChildren();
  for (const row of shown.slice(0, mostRows)) {
    const line = element("tr", "", body, row === chosen ? { "aria-current": "true" } : {});
    line.addEventListener("click", () => choose(row));
    for (const column of columns) {
      const text = row.cells[column];
      const isRight = isNumber(text) && !names.includes(table.titles[column]);
      element("td", text, line, { title: text, ...(isRight ? { class: "number" } : {}) });
    }
  }
  const more = shown.length > mostRows ? `, the first ${mostRows} here` : "";
  byId("status").textContent = `${shown.length} of ${table.rows.length} rows${more}${shared.length ? `; all: ${shared.join(", ")}` : ""}`;
}

function choose(row) {
  chosen = row;
  byId("details").textContent = row.details;
  showTable();
}

draw();
isDark.addEventListener("change", draw);
if (table.rows.length) {
  const heads = element("tr", "", byId("rows").tHead);
  columns.forEach((column) => {
    const head = element("th", "", heads, { scope: "col" });
    element("button", table.titles[column], head, { type: "button" }).addEventListener("click", () => {
      sorted = { column, isUp: sorted.column !== column || !sorted.isUp };
      for (const other of heads.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sorted.isUp ? "ascending" : "descending");
      showTable();
    });
  });
  byId("search").addEventListener("input", showTable);
  byId("plot").on("plotly_click", ({ points }) => {
    const row = table.rows.find((one) => one.point === points[0].customdata);
    if (row) choose(row);
  });
  showTable();
}
