// The pictures: the roofline, times against the least time, rows without FLOPs, and the modules of a profile.
const symbols = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left", "triangle-right", "pentagon", "hexagon", "diamond-tall"];
const fillings = ["", "-open", "-dot", "-open-dot"];
const mostBars = 500;
const margin = { l: 78, r: 22, t: 18, b: 58 };

const isDrawn = (i) => rows.drawn[i];
const hasTime = (i) => rows.least_s[i] > 0 && rows.median_s[i] !== null;
const isWithoutFlops = (i) => rows.status[i] === "ok" && rows.flops[i] === 0 && rows.bytes_per_s[i] > 0;
const anyRow = (test) => Array.from({ length: rowCount }, (_, i) => i).some(test);

const views = [
  { key: "roofline", title: "Roofline", draw: drawRoofline, has: isDrawn, place: (i) => [rows.intensity[i], rows.flops_per_s[i]] },
  { key: "time", title: "Time", draw: drawTimes, has: hasTime, place: (i) => [rows.least_s[i], rows.median_s[i]], isThere: () => anyRow(hasTime) },
  { key: "bandwidth", title: "Without FLOPs", draw: drawBandwidth, has: isWithoutFlops, place: (i) => [rows.bytes_per_s[i], bandwidthPlaces().indexOf(bandwidthName(i))], isThere: () => anyRow(isWithoutFlops) },
  { key: "modules", title: "Modules", draw: drawModules, has: () => false, isThere: () => content.modules.length > 0 },
].filter((view) => !view.isThere || view.isThere());

const currentView = () => views.find((view) => view.key === state.view);
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shade = (colors) => colors[isDark() ? 1 : 0];

function axis(title, range, more = {}) {
  return { title: { text: title, standoff: 10 }, type: "log", range, gridcolor: ink("--line"), linecolor: ink("--line"), zeroline: false, color: ink("--ink"), dtick: 1, minor: { showgrid: false }, ...more };
}

function layout(more) {
  return { margin, paper_bgcolor: ink("--paper"), plot_bgcolor: ink("--paper"), font: { family: "system-ui, DejaVu Sans, sans-serif", size: 13, color: ink("--ink") }, showlegend: false, hovermode: "closest", dragmode: "zoom", ...more };
}

// One trace holds all points, so that ten thousand of them are drawn at once.
function pointTrace(shown, x, y, bars) {
  return {
    type: "scatter", mode: "markers", x: shown.map(x), y: shown.map(y), customdata: shown, hoverinfo: "none",
    error_y: bars && shown.length <= mostBars ? { type: "data", symmetric: false, array: shown.map((i) => bars(i)[1]), arrayminus: shown.map((i) => bars(i)[0]), color: ink("--muted"), thickness: 1.2, width: 4 } : undefined,
    marker: {
      size: shown.map((i) => (rows.share[i] === null ? 11 : Math.max(4, 70 * Math.sqrt(rows.share[i])))),
      color: shown.map((i) => (rows.color[i] ? shade(rows.color[i]) : ink("--accent"))),
      symbol: shown.map((i) => symbols[(rows.shape[i] ?? 0) % symbols.length] + fillings[rows.filling[i] ?? 0]),
      opacity: rows.share.some((value) => value !== null) ? 0.6 : 1, line: { width: 1.5 },
    },
  };
}

// The chosen point has a ring over the picture, so that nothing is drawn anew for it.
function drawRing() {
  const view = currentView(), ring = byId("ring"), i = state.picked;
  const { xaxis, yaxis } = byId("plot")._fullLayout;
  ring.hidden = i === null || !view.place || !view.has(i) || !xaxis;
  if (ring.hidden) return;
  const [x, y] = view.place(i);
  const [left, top] = [xaxis.d2p(x), yaxis.d2p(y)];
  ring.hidden = !(left >= 0 && left <= xaxis._length && top >= 0 && top <= yaxis._length);
  ring.style.left = `${left + xaxis._offset}px`;
  ring.style.top = `${top + yaxis._offset}px`;
}

function line(x, y, color, width = 1.2, dash = "solid") {
  return { type: "scatter", mode: "lines", x, y, hoverinfo: "skip", line: { color, width, dash } };
}

// The label of a roof stands on it inside of the part that is seen, whatever that is.
function roofLabel(roof, place, [left, right], [bottom, top], size) {
  const [x0, x1] = roof.x.map(Math.log10), [y0, y1] = roof.y.map(Math.log10);
  const isFlat = y0 === y1;
  const slope = isFlat ? 0 : 1;
  const from = Math.max(x0, left, isFlat ? left : left + (bottom - (y0 + left - x0)));
  const to = Math.min(x1, right, isFlat ? right : right - ((y0 + right - x0) - top));
  if (!(from < to) || y0 > top && isFlat || y1 < bottom && isFlat) return null;
  const x = isFlat ? to : from + place * (to - from);
  const angle = isFlat ? 0 : -(Math.atan2((slope * size.height) / (top - bottom), size.width / (right - left)) * 180) / Math.PI;
  return { x, y: y0 + slope * (x - x0), text: plain(roof.label), showarrow: false, textangle: angle, xanchor: isFlat ? "right" : "center", yanchor: "bottom", font: { size: 12, color: shade(roof.colors) }, ...(isFlat ? {} : { yshift: 3, xshift: -6 }) };
}

// Rising roofs are labeled at places that take turns along them, because some lie close to one another.
function rising(roofs, roof) {
  return [0.42, 0.7, 0.2, 0.85, 0.55, 0.3][roofs.filter((one) => one.level !== null).indexOf(roof) % 6];
}

function plotSize() {
  const box = byId("plot").getBoundingClientRect();
  return { width: box.width - margin.l - margin.r, height: box.height - margin.t - margin.b };
}

function drawRoofline(shown) {
  const [xs, ys] = state.ranges.roofline ?? [content.view.x, content.view.y];
  const roofs = content.roofs.filter(isRoofShown);
  const traces = roofs.map((roof) => line(roof.x, roof.y, shade(roof.colors), roof.width, roof.dash));
  const ridges = roofs.filter((roof) => roof.ridge);
  traces.push({ type: "scatter", mode: ridges.length > 6 ? "markers" : "markers+text", x: ridges.map((roof) => roof.ridge), y: ridges.map((roof) => roof.value), text: ridges.map((roof) => significant(roof.ridge)), textposition: "top left", textfont: { size: 11, color: ink("--muted") }, hoverinfo: "skip", marker: { size: 6, color: ink("--muted") } });
  const [x, y] = [(i) => rows.intensity[i], (i) => rows.flops_per_s[i]];
  const bars = (i) => [rows.flops_per_s[i] - rows.low[i], rows.high[i] - rows.flops_per_s[i]];
  traces.push(pointTrace(shown, x, y, bars));
  const labels = roofs.map((roof) => roofLabel(roof, rising(roofs, roof), xs, ys, plotSize())).filter(Boolean);
  return { traces, layout: layout({ xaxis: axis("arithmetic intensity, FLOP/byte", [...xs], { tickformat: ",.4~g" }), yaxis: axis("FLOP/s", [...ys], { tickformat: "~s" }), annotations: apart(labels, ys) }) };
}

// Of labels of flat roofs that would lie on one another only the first stands.
function apart(labels, [bottom, top]) {
  const least = (16 / plotSize().height) * (top - bottom);
  const kept = [];
  for (const label of labels) {
    if (label.textangle || kept.every((other) => other.textangle || Math.abs(other.y - label.y) >= least)) kept.push(label);
    else {
      const other = kept.find((one) => !one.textangle && Math.abs(one.y - label.y) < least);
      if (!other.text.includes(label.text)) other.text = `${label.text} · ${other.text}`;
    }
  }
  return kept;
}

function spanOf(values, more = 0.3) {
  const found = values.filter((value) => value > 0).map(Math.log10);
  return found.length ? [found.reduce((a, b) => Math.min(a, b)) - more, found.reduce((a, b) => Math.max(a, b)) + more] : [-6, 0];
}

function drawTimes(shown) {
  const all = Array.from({ length: rowCount }, (_, i) => i).filter(hasTime);
  const [low, high] = spanOf(all.flatMap((i) => [rows.least_s[i], rows.median_s[i]]));
  const [xs, ys] = state.ranges.time ?? [[low, high], [low, high]];
  const ends = [10 ** (low - 6), 10 ** (high + 6)];
  const traces = [line(ends, ends, ink("--muted"), 1.5)];
  for (const launch of content.launch_s) if (launch) traces.push(line([launch, launch], ends, ink("--muted"), 1, "dot"));
  const [x, y] = [(i) => rows.least_s[i], (i) => rows.median_s[i]];
  if (shown.length <= mostBars) traces.push({ type: "scatter", mode: "markers", x: shown.map(x), y: shown.map((i) => rows.sum_s[i]), hoverinfo: "skip", marker: { symbol: "line-ew-open", size: 12, color: ink("--muted"), line: { width: 1.5 } } });
  const bars = (i) => (rows.ci95_low_s[i] === null ? [0, 0] : [y(i) - rows.ci95_low_s[i], rows.ci95_high_s[i] - y(i)]);
  traces.push(pointTrace(shown, x, y, bars));
  const labels = [{ x: high, y: high, text: "as fast as the limits allow", showarrow: false, xanchor: "right", yanchor: "top", yshift: -12, font: { size: 12, color: ink("--muted") } }];
  return { traces, layout: layout({ xaxis: axis("least time by peak, bandwidth and launch, s", [...xs], { tickformat: "~s" }), yaxis: axis("measured median, s", [...ys], { tickformat: "~s" }), annotations: labels }) };
}

const bandwidthName = (i) => `${rows.op[i]} ${rows.dtype[i]} ${rows.provider[i]}`.slice(0, 40);
const bandwidthPlaces = () => [...new Set(shownRows().filter(isWithoutFlops).map(bandwidthName))];

function drawBandwidth(shown) {
  const roofs = content.roofs.filter((roof) => roof.level !== null && isRoofShown(roof));
  const span = spanOf([...shown.map((i) => rows.bytes_per_s[i]), ...roofs.map((roof) => roof.value)]);
  const places = bandwidthPlaces();
  const [xs, ys] = state.ranges.bandwidth ?? [span, [-0.7, Math.max(0.7, places.length - 0.3)]];
  const traces = roofs.map((roof) => line([roof.value, roof.value], [-1, places.length + 1], shade(roof.colors), roof.width, roof.dash));
  const [x, y] = [(i) => rows.bytes_per_s[i], (i) => places.indexOf(bandwidthName(i))];
  traces.push(pointTrace(shown, x, y, null));
  const ticks = { type: "linear", dtick: undefined, tickvals: places.map((_, at) => at), ticktext: places.map(plain), automargin: true };
  return { traces, layout: layout({ xaxis: axis("bytes moved per second", [...xs], { tickformat: "~s" }), yaxis: axis("", [...ys], ticks) }) };
}

function drawModules() {
  const nodes = content.modules;
  const trace = {
    type: "icicle", ids: nodes.map((node) => String(node.id)), labels: nodes.map((node) => plain(node.name)),
    parents: nodes.map((node) => (node.parent === null ? "" : String(node.parent))), values: nodes.map((node) => node.time_s),
    branchvalues: "total", hoverinfo: "none", textinfo: "label+percent root", tiling: { orientation: "v" }, sort: true,
    customdata: nodes.map((node) => node.id), marker: { colorscale: isDark() ? "Blues" : "Blues", line: { width: 1, color: ink("--paper") } },
  };
  return { traces: [trace], layout: layout({ margin: { l: 8, r: 8, t: 8, b: 8 } }) };
}

function drawPlot(shown) {
  const view = currentView();
  const seen = shown.filter(view.has);
  const drawn = view.draw(seen);
  Plotly.react(byId("plot"), drawn.traces, drawn.layout, { displayModeBar: false, responsive: true, scrollZoom: true, doubleClick: false, showTips: false });
  drawRing();
  byId("plot").setAttribute("aria-label", `${view.title}: ${seen.length} points; the table below holds the same rows`);
  byId("legend").textContent = legendText(seen.length);
}

function legendText(count) {
  const parts = [];
  if (state.view === "roofline" && content.rows.op) parts.push(`Color tells the ${content.colored_by} apart, shape the ${content.shaped_by}`);
  if (count > mostBars) parts.push(`intervals are drawn up to ${mostBars} points`);
  else if (count && state.view !== "bandwidth" && state.view !== "modules") parts.push("bars: 95 % confidence interval of the median");
  if (state.view === "roofline" && new Set(content.roofs.map((roof) => roof.kind)).size > 1) parts.push("measured roofs are solid, those of datasheets dashed, those at the clock of the run dash-dotted");
  return parts.length ? `${parts.join("; ")}.` : "";
}

// Points in the order in which arrows go through them: from left to right.
function pointsInOrder() {
  const view = currentView();
  const place = { roofline: rows.intensity, time: rows.least_s, bandwidth: rows.bytes_per_s }[view.key] ?? [];
  return shownRows().filter(view.has).sort((a, b) => place[a] - place[b] || rows.median_s[a] - rows.median_s[b] || a - b);
}
