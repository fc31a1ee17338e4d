// The content of the page, what is chosen of it, and how numbers read. Names come from files: they only ever become text.
const content = JSON.parse(document.getElementById("content").textContent);
const rows = content.rows;
const rowCount = rows.op ? rows.op.length : 0;
const byId = (id) => document.getElementById(id);

const state = {
  view: "roofline", theme: "auto", query: "", sort: null, descending: false, first: 0,
  hidden: {}, picked: null, isolated: false, ranges: {}, printing: false,
};

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function significant(value, digits = 3) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e6) return value.toExponential(digits - 1);
  return String(Number(value.toPrecision(digits)));
}

function scaled(value, unit, digits = 3) {
  if (value === null || value === undefined) return "";
  for (const [factor, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= factor) return `${significant(value / factor, digits)} ${prefix}${unit}`;
  }
  return `${significant(value, digits)} ${unit}`;
}

function time(value, digits = 4) {
  if (value === null || value === undefined) return "";
  for (const [factor, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) {
    if (value >= factor) return `${significant(value / factor, digits)} ${unit}`;
  }
  return `${significant(value * 1e9, digits)} ns`;
}

const percent = (value) => (value === null || value === undefined ? "" : `${significant(value)} %`);

// What the columns of the table hold: key of the value that sorts, title, text of a row, whether it is a number.
const columns = [
  { key: "op", title: "op", text: (i) => rows.op[i] },
  { key: "case", title: "case", text: (i) => rows.case[i] },
  { key: "dtype", title: "dtype", text: (i) => rows.dtype[i] },
  { key: "provider", title: "provider", text: (i) => rows.provider[i] },
  { key: "module", title: "module", text: (i) => rows.module[i] ?? "", only: () => rows.module?.some(Boolean) },
  { key: "share", title: "share", text: (i) => percent(rows.share[i] === null ? null : 100 * rows.share[i]), number: true, only: () => rows.share?.some((v) => v !== null) },
  { key: "median_s", title: "median", text: (i) => time(rows.median_s[i]), number: true },
  { key: "ci95_high_s", title: "95% CI", text: (i) => interval(i), number: true },
  { key: "roofline_pct", title: "% roof", text: (i) => percent(rows.roofline_pct[i]), number: true },
  { key: "bound", title: "bound", text: (i) => bound(i) },
  { key: "flops_per_s", title: "FLOP/s", text: (i) => scaled(rows.flops_per_s[i], "FLOP/s"), number: true },
  { key: "bytes_per_s", title: "B/s", text: (i) => scaled(rows.bytes_per_s[i], "B/s"), number: true },
  { key: "intensity", title: "FLOP/B", text: (i) => (rows.intensity[i] === null ? "" : significant(rows.intensity[i])), number: true },
  { key: "flags", title: "flags", text: (i) => Object.keys(rows.flags[i]).join(", ") },
  { key: "status", title: "status", text: (i) => rows.status[i], only: () => rows.status?.some((s) => s !== "ok") },
  { key: "run", title: "run", text: (i) => content.runs[rows.run[i]].run_id, only: () => content.runs.length > 1 },
].filter((column) => !column.only || column.only());

function interval(i) {
  const [low, high] = [rows.ci95_low_s[i], rows.ci95_high_s[i]];
  return low === null ? "" : `${time(low)} to ${time(high)}`;
}

function bound(i) {
  return rows.bound[i] === null ? "" : rows.held_back_by[i] ? `${rows.bound[i]} side` : rows.bound[i];
}

const meanings = new Map(content.words.map((word) => [word.name, word.meaning]));

// What is heard of a row that was chosen: less than stands in its card.
function sentence(i) {
  const parts = [time(rows.median_s[i]) || rows.status[i], rows.roofline_pct[i] === null ? "" : `${percent(rows.roofline_pct[i])} of its roof`, bound(i) && `bound: ${bound(i)}`, Object.keys(rows.flags[i]).join(", ")];
  return `${rows.op[i]} ${rows.case[i]} ${rows.dtype[i]} ${rows.provider[i]}: ${parts.filter(Boolean).join(", ")}`;
}

// All that is known of a row, as pairs of a name and a text.
function facts(i) {
  const known = [
    ["provider", rows.provider[i]], ["dtype", rows.dtype[i]], ["options", rows.options[i]],
    ["module", rows.module[i]], ["median", time(rows.median_s[i])], ["95 % CI", interval(i)],
    ["samples", String(rows.samples[i])], ["compute", scaled(rows.flops_per_s[i], "FLOP/s")],
    ["memory", scaled(rows.bytes_per_s[i], "B/s")],
    ["intensity", rows.intensity[i] === null ? "" : `${significant(rows.intensity[i])} FLOP/byte`],
    ["bound", bound(i)], ["held back by", rows.held_back_by[i]], ["of its roof", percent(rows.roofline_pct[i])],
    ["MFU", percent(rows.mfu[i] === null ? null : 100 * rows.mfu[i])],
    ["MBU", percent(rows.mbu[i] === null ? null : 100 * rows.mbu[i])],
    ["least time", time(rows.least_s[i])], ["above", rows.excess[i]],
    ["clock", rows.sm_clock_hz[i] === null ? "not known" : scaled(rows.sm_clock_hz[i], "Hz")],
    ["temperature", rows.temperature_c[i] === null ? "" : `${rows.temperature_c[i]} °C`],
    ["power", rows.power_w[i] === null ? "" : `${rows.power_w[i]} W`],
    ["cache", rows.cache[i]], ["method", rows.method[i]], ["inputs", rows.fill[i]],
    ["status", rows.status[i] === "ok" ? "" : `${rows.status[i]}: ${rows.reason[i] ?? ""}`],
    ["verdict", rows.verdict[i]], ["run", content.runs.length > 1 ? content.runs[rows.run[i]].run_id : ""],
  ];
  for (const [name, reason] of Object.entries(rows.flags[i])) known.push([name, reason || meanings.get(name) || "a flag"]);
  return known.filter(([, text]) => text !== "" && text !== null && text !== undefined);
}

// How a roof was measured, or where it is published, as pairs of a name and a text.
function roofFacts(roof) {
  const unit = roof.dtype === null ? "B/s" : "FLOP/s";
  const span = (ends) => (ends ? `${scaled(ends[0], unit)} to ${scaled(ends[1], unit)}` : "");
  const known = [
    ["value", scaled(roof.value, unit, 4)], ["kind", roof.kind], ["machine", content.machines[roof.machine].slug], ["p5 to p95", span(roof.p5_p95)], ["95 % CI of the median", span(roof.ci95)],
    ["ridge", roof.ridge ? `${significant(roof.ridge)} FLOP/byte` : ""], ["source", roof.source], ["by", roof.config],
    ["measured at", roof.measured_at], ["disturbed", roof.disturbed],
  ];
  return known.filter(([, text]) => text);
}

function factCard(name, known) {
  const list = element("dl");
  for (const [key, text] of known) list.append(element("div", {}, element("dt", { text: key }), element("dd", { text })));
  return [element("p", { class: "name", text: name }), list];
}

const card = (i) => factCard(`${rows.op[i]} ${rows.case[i]}`, facts(i));

const seriesOf = (i) => JSON.stringify([rows.op[i], rows.dtype[i], rows.provider[i], rows.run[i], rows.module[i]]);

function save(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
}
