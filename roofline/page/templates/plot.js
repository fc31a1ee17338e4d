// The pictures: the roofline, times against the least time, rows without FLOPs, and the modules of a profile.
const symbols = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left", "triangle-right", "pentagon", "hexagon", "diamond-tall"];
const fillings = ["", "-open", "-dot", "-open-dot"];
const mostBars = 500;
const mostFramed = 100; // bars of modules; of more, the frames would hide the narrow ones
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
const veil = () => `${ink("--paper")}80`; // behind words that stand over points
const shade = (colors) => colors[isDark() ? 1 : 0];

const isProfile = Boolean(rows.share?.some((value) => value !== null));
// Of a profile the area of a point is its share of the step.
const markerSize = (i) => (rows.share[i] === null ? 11 : Math.max(4, 70 * Math.sqrt(rows.share[i])));

function axis(title, range, more = {}) {
  return { title: { text: title, standoff: 10 }, type: "log", range, gridcolor: ink("--line"), linecolor: ink("--line"), zeroline: false, color: ink("--ink"), dtick: range[1] - range[0] < 0.9 ? "D1" : range[1] - range[0] < 1.5 ? "D2" : 1, minor: { showgrid: false }, ...more };
}

function layout(more) {
  return { margin, paper_bgcolor: ink("--paper"), plot_bgcolor: ink("--paper"), font: { family: "system-ui, DejaVu Sans, sans-serif", size: 13, color: ink("--ink") }, showlegend: false, hovermode: "closest", dragmode: "zoom", ...more };
}

const colorOf = (i) => (rows.color[i] ? shade(rows.color[i]) : ink("--accent"));
const symbolOf = (i) => symbols[(rows.shape[i] ?? 0) % symbols.length] + fillings[rows.filling[i] ?? 0];

// Few points are one trace with their bars. Of many, those that look alike are one: Plotly draws these a third faster.
function pointTraces(shown, x, y, bars) {
  if (shown.length > mostBars && !isProfile) return crowdTraces(shown, x, y);
  const colors = shown.map(colorOf);
  return [{
    type: "scatter", mode: "markers", x: shown.map(x), y: shown.map(y), customdata: shown, hoverinfo: "none",
    error_y: bars && shown.length <= mostBars ? { type: "data", symmetric: false, array: shown.map((i) => bars(i)[1]), arrayminus: shown.map((i) => bars(i)[0]), color: ink("--muted"), thickness: 1.2, width: 4 } : undefined,
    marker: { size: shown.map(markerSize), color: colors, symbol: shown.map(symbolOf), opacity: isProfile ? 0.6 : 1, line: { width: 1.5, color: colors } },
  }];
}

function crowdTraces(shown, x, y) {
  const alike = new Map();
  for (const i of shown) {
    const [color, symbol] = [colorOf(i), symbolOf(i)], look = color + symbol;
    if (!alike.has(look)) alike.set(look, { type: "scatter", mode: "markers", x: [], y: [], customdata: [], hoverinfo: "none", marker: { size: markerSize(i), color, symbol, line: { width: symbol.includes("-open") ? 1.5 : 0, color } } });
    const trace = alike.get(look);
    trace.x.push(x(i));
    trace.y.push(y(i));
    trace.customdata.push(i);
  }
  return [...alike.values()];
}

// As in the static picture a cross is over a point that flags speak against, and a ring around one above its roof.
function remarkTraces(shown, x, y) {
  if (shown.length > mostBars) return [];
  const over = (test, marker) => {
    const found = shown.filter(test);
    return { type: "scatter", mode: "markers", x: found.map(x), y: found.map(y), hoverinfo: "skip", marker: { color: ink("--ink"), ...marker } };
  };
  return [over((i) => rows.doubtful[i], { symbol: "x-thin-open", size: 13, line: { width: 1.5 } }), over((i) => rows.excess[i] !== null, { symbol: "circle-open", size: 20, line: { width: 1.2 } })];
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

// Labels stand inside of the part of the plane that is seen, whatever that is, and none on another: boxes are in pixels.
function labelMaker([left, right], [bottom, top], points = []) {
  const { width, height } = plotSize();
  const across = (x) => ((x - left) / (right - left)) * width;
  const down = (y) => ((top - y) / (top - bottom)) * height;
  const slant = Math.atan2(height / (top - bottom), width / (right - left));
  const kept = [], slanted = [], lines = [], found = [];
  const spots = points.map(([x, y]) => [across(Math.log10(x)), down(Math.log10(y))]);
  const isOverPoint = (box) => spots.some(([u, v]) => u + 7 > box[0] && u - 7 < box[1] && v + 7 > box[2] && v - 7 < box[3]);
  const overlap = (one, other) => one[0] < other[1] && other[0] < one[1] && one[2] < other[3] && other[2] < one[3];
  const inside = (box) => box[0] >= 0 && box[1] <= width && box[2] >= 0 && box[3] <= height;
  const write = (x, y, text, more) => found.push({ x, y, text: plain(text), showarrow: false, font: { size: 12 }, ...more });

  function flat(roof, others) {
    const [y, x0] = [Math.log10(roof.y[0]), Math.log10(roof.x[0])];
    if (y < bottom || y > top || x0 > right) return;
    const wide = 6.9 * roof.label.length, at = down(y);
    const near = others.map((other) => down(Math.log10(other.y[0]))).filter((line) => Math.abs(line - at) > 2);
    const places = [0, 1, 2, 3].flatMap((turn) => [true, false].map((isAbove) => ({ isAbove, end: width - turn * (wide + 14) })));
    const boxOf = ({ isAbove, end }) => [end - wide, end, isAbove ? at - 17 : at + 2, isAbove ? at - 2 : at + 17];
    const isFree = (place) => kept.every((box) => !overlap(box, boxOf(place))) && boxOf(place)[0] > -40;
    const isClear = (place) => isFree(place) && near.every((line) => line < boxOf(place)[2] || line > boxOf(place)[3]);
    const isBest = (place) => isClear(place) && !isOverPoint(boxOf(place)) && boxOf(place)[0] >= across(x0);
    const place = places.find(isBest) ?? places.find(isClear) ?? places.find(isFree);
    if (!place) return;
    kept.push(boxOf(place));
    write(right, y, roof.label, { xanchor: "right", xshift: place.end - width, yanchor: place.isAbove ? "bottom" : "top", bgcolor: isOverPoint(boxOf(place)) ? veil() : undefined, font: { size: 12, color: shade(roof.colors) } });
  }

  const shiftOf = (roof) => Math.log10(roof.y[0]) - Math.log10(roof.x[0]);

  function rising(roof, others = []) {
    const shift = shiftOf(roof);
    const above = others.map((other) => ((shiftOf(other) - shift) / (top - bottom)) * height * Math.cos(slant));
    const isBelow = above.some((gap) => gap > 0 && gap < 30); // the label would lie on the roof above
    const from = Math.max(Math.log10(roof.x[0]), left, bottom - shift), to = Math.min(Math.log10(roof.x[1]), right, top - shift);
    if (!(from < to)) return;
    const beside = spots.map(([u, v]) => [u * Math.cos(slant) - v * Math.sin(slant), u * Math.sin(slant) + v * Math.cos(slant)]);
    const isFree = (place) => place.isSeen && slanted.every((other) => !overlap(place.box, other));
    const isClear = ({ box }) => beside.every(([u, v]) => u + 7 < box[0] || u - 7 > box[1] || v + 7 < box[2] || v - 7 > box[3]);
    const places = [0.42, 0.7, 0.2, 0.85, 0.55, 0.3, 0.1].map((share) => slantedPlace(from + share * (to - from), shift, 3.6 * roof.label.length, isBelow)).filter(isFree);
    const place = places.find(isClear) ?? places[0];
    if (!place) return;
    slanted.push(place.box);
    write(place.x, place.x + shift, roof.label, { textangle: (-slant * 180) / Math.PI, xshift: (isBelow ? 11 : -11) * Math.sin(slant), yshift: (isBelow ? -11 : 11) * Math.cos(slant), font: { size: 12, color: shade(roof.colors) } });
  }

  // A place on a rising roof, with its box in directions along the roof and beside it.
  function slantedPlace(x, shift, half, isBelow) {
    const [u, v] = [across(x), down(x + shift)];
    const along = u * Math.cos(slant) - v * Math.sin(slant), beside = u * Math.sin(slant) + v * Math.cos(slant);
    const isSeen = inside([u - half * Math.cos(slant), u + half * Math.cos(slant), v - half * Math.sin(slant), v + half * Math.sin(slant)]);
    return { x, isSeen, box: [along - half, along + half, isBelow ? beside : beside - 18, isBelow ? beside + 18 : beside] };
  }

  // What labels of points keep off: lines of flat roofs, and other points.
  function avoid(roofs, points) {
    for (const roof of roofs) lines.push([across(Math.log10(roof.x[0])), width, down(Math.log10(roof.y[0])) - 1, down(Math.log10(roof.y[0])) + 1]);
    for (const [x, y] of points) lines.push([across(Math.log10(x)) - 5, across(Math.log10(x)) + 5, down(Math.log10(y)) - 5, down(Math.log10(y)) + 5]);
  }

  const star = (x, y) => kept.push([across(x) - 9, across(x) + 9, down(y) - 9, down(y) + 9]);

  // A ridge point is named above its corner, where no roof is.
  function ridge(x, y, text) {
    const [u, v, wide] = [across(x), down(y), 6.4 * text.length];
    const box = [u - 6 - wide, u - 6, v - 17, v - 3];
    if (!inside(box) || kept.some((other) => overlap(box, other))) return;
    kept.push(box);
    write(x, y, text, { xanchor: "right", yanchor: "bottom", xshift: -4, yshift: 1, font: { size: 11, color: ink("--muted") } });
  }

  function point(x, y, text, gap = 8) {
    const [u, v, wide] = [across(x), down(y), 6.4 * text.length];
    const sides = [[u + gap, "left", v - 8, "middle"], [u - gap - wide, "right", v - 8, "middle"], [u - wide / 2, "center", v - gap - 15, "bottom"], [u - wide / 2, "center", v + gap, "top"]];
    for (const [start, xanchor, above, yanchor] of sides) {
      const box = [start, start + wide, above, above + 15];
      if (!inside(box) || [...kept, ...lines].some((other) => overlap(box, other))) continue;
      kept.push(box);
      write(x, y, text, { xanchor, yanchor, xshift: { left: gap, right: -gap, center: 0 }[xanchor], yshift: { bottom: gap, top: -gap, middle: 0 }[yanchor], font: { size: 11, color: ink("--muted") } });
      return;
    }
  }
  return { flat, rising, avoid, star, ridge, point, found };
}

function plotSize() {
  const box = byId("plot").getBoundingClientRect();
  return { width: box.width - margin.l - margin.r, height: box.height - margin.t - margin.b };
}

function drawRoofline(shown) {
  const [xs, ys] = state.ranges.roofline ?? [content.view.x, content.view.y];
  const roofs = content.roofs.filter(isRoofShown);
  const traces = [...bandTraces(roofs), ...roofs.map((roof) => line(roof.x, roof.y, shade(roof.colors), roof.width, roof.dash))];
  traces.push(roofTips(roofs, xs, ys));
  const ridges = roofs.filter((roof) => roof.ridge);
  traces.push({ type: "scatter", mode: "markers", x: ridges.map((roof) => roof.ridge), y: ridges.map((roof) => roof.value), hoverinfo: "skip", marker: { size: 6, color: ink("--muted") } });
  const [x, y] = [(i) => rows.intensity[i], (i) => rows.flops_per_s[i]];
  const bars = (i) => [rows.flops_per_s[i] - rows.low[i], rows.high[i] - rows.flops_per_s[i]];
  traces.push(...changeTraces(shown, x, y), ...capTraces(shown, x), ...pointTraces(shown, x, y, isProfile ? null : bars), ...remarkTraces(shown, x, y), ...estimateTraces((one) => [one.intensity, one.flops_per_s]));
  const points = shown.length > mostBars ? [] : shown.map((i) => [x(i), y(i)]);
  const labels = labelMaker(xs, ys, points), flats = roofs.filter((roof) => roof.dtype);
  if (isEstimateShown()) for (const one of content.estimates) labels.star(Math.log10(one.intensity), Math.log10(one.flops_per_s));
  for (const roof of [...flats].sort((a, b) => b.value - a.value)) labels.flat(roof, flats);
  const slopes = roofs.filter((roof) => roof.level);
  for (const roof of slopes) labels.rising(roof, slopes);
  const isShown = new Set(shown);
  for (const roof of ridges) labels.ridge(Math.log10(roof.ridge), Math.log10(roof.value), significant(roof.ridge));
  labels.avoid(flats, points);
  for (const { row, text } of shown.length > mostBars ? [] : content.labels) if (isShown.has(row)) labels.point(Math.log10(x(row)), Math.log10(y(row)), text, isProfile ? 4 + markerSize(row) / 2 : 9);
  if (isEstimateShown()) for (const one of content.estimates) labels.point(Math.log10(one.intensity), Math.log10(one.flops_per_s), one.name, 11);
  return { traces, layout: layout({ xaxis: axis("arithmetic intensity, FLOP/byte", [...xs], { tickformat: ",~r" }), yaxis: axis("FLOP/s", [...ys], { tickformat: "~s" }), annotations: labels.found }) };
}

// Plotly tells only points that are pointed at: unseen ones stand along each roof, as far as it is seen.
function roofTips(roofs, [left, right], [bottom, top]) {
  return tipTrace(roofs.flatMap((roof) => {
    const [x0, x1] = roof.x.map(Math.log10), [y0, y1] = roof.y.map(Math.log10);
    const from = Math.max(x0, left), to = Math.min(x1, right), level = (x) => y0 + ((x - x0) / (x1 - x0)) * (y1 - y0);
    const count = Math.max(2, Math.ceil(((to - from) / (right - left)) * tipsAcross));
    return from < to ? along(roof, count, [from, to], [level(from), level(to)], (at) => 10 ** at).filter((one) => one.y >= 10 ** bottom && one.y <= 10 ** top) : [];
  }));
}

const tipsAcross = 80; // no more: where they stand closer, a point at a roof is hard to hit

// Points from one end of a roof to the other; `scale` turns places in the picture into values.
function along(roof, count, [x0, x1], [y0, y1], scale) {
  const place = content.roofs.indexOf(roof);
  return Array.from({ length: count + 1 }, (_, step) => step / count).map((share) => ({ x: scale(x0 + share * (x1 - x0)), y: scale(y0 + share * (y1 - y0)), place }));
}

function tipTrace(found) {
  return { type: "scatter", mode: "markers", x: found.map((one) => one.x), y: found.map((one) => one.y), meta: found.map((one) => one.place), hoverinfo: "none", marker: { size: 6, opacity: 0 } };
}

// An arrow leads from version to version and from run to run, as in the static picture; else from baseline to candidate.
function changeTraces(shown, x, y) {
  const isShown = new Set(shown);
  const compared = shown.map((i) => [rows.baseline[i], i]).filter(([before]) => before !== null && rows.drawn[before]);
  const isLong = ([before, after]) => Math.abs(Math.log(y(after) / y(before))) > 0.02;
  const steps = (content.steps.length ? content.steps : compared).filter((step) => step.every((i) => isShown.has(i)) && isLong(step));
  if (!steps.length || steps.length > mostBars) return [];
  const through = (place) => steps.flatMap(([before, after]) => [place(before), place(after), null]);
  return [{ type: "scatter", mode: "lines+markers", x: through(x), y: through(y), hoverinfo: "skip", line: { color: ink("--muted"), width: 1 }, marker: { symbol: "arrow", angleref: "previous", size: steps.flatMap(() => [0, 9, 0]), standoff: 6, color: ink("--muted") } }];
}

// What the samples of a measured roof reached lies along it as a band.
function bandTraces(roofs) {
  return roofs.filter((roof) => roof.band && roof.level !== "mixes").map((roof) => {
    const [low, high] = roof.band.map((value) => value / roof.value);
    const [x0, x1] = roof.x, [y0, y1] = roof.y;
    return { type: "scatter", mode: "lines", x: [x0, x1, x1, x0], y: [y0 * low, y1 * low, y1 * high, y0 * high], fill: "toself", fillcolor: faint(shade(roof.colors)), hoverinfo: "skip", line: { width: 0 } };
  });
}

const faint = (color) => `rgba(${[1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)).join(",")},0.18)`;

// No launch of a row's size is faster than its FLOPs over the launch floor: a short line where that is below its roof.
function capTraces(shown, x) {
  const capped = shown.length > mostBars ? [] : shown.filter((i) => rows.cap[i] !== null);
  return [{ type: "scatter", mode: "markers", x: capped.map(x), y: capped.map((i) => rows.cap[i]), hoverinfo: "skip", marker: { symbol: "line-ew-open", size: 13, color: ink("--muted"), line: { width: 1.5 } } }];
}

const isEstimateShown = () => !state.hidden.layer.has("estimates");

function estimateTraces(place) {
  const known = isEstimateShown() ? content.estimates : [];
  return known.length ? [{ type: "scatter", mode: "markers", x: known.map((one) => place(one)[0]), y: known.map((one) => place(one)[1]), hoverinfo: "skip", marker: { symbol: "star-open", size: 15, color: ink("--ink"), line: { width: 1.5 } } }] : [];
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
  traces.push(...pointTraces(shown, x, y, isProfile ? null : bars));
  traces.push(...remarkTraces(shown, x, y), ...estimateTraces((one) => [one.seconds, one.seconds]));
  const labels = labelMaker(xs, ys);
  labels.rising({ x: ends, y: ends, label: "as fast as the limits allow", colors: [ink("--muted"), ink("--muted")] });
  return { traces, layout: layout({ xaxis: axis("least time by peak, bandwidth and launch, s", [...xs], { tickformat: "~s" }), yaxis: axis("measured median, s", [...ys], { tickformat: "~s" }), annotations: labels.found }) };
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
  traces.push(tipTrace(roofs.flatMap((roof) => along(roof, tipsAcross / 2, [roof.value, roof.value], ys, (at) => at))), ...pointTraces(shown, x, y, null), ...remarkTraces(shown, x, y));
  const ticks = { type: "linear", dtick: undefined, tickvals: places.map((_, at) => at), ticktext: places.map(plain), automargin: true };
  return { traces, layout: layout({ xaxis: axis("bytes moved per second, B/s", [...xs], { tickformat: "~s" }), yaxis: axis("", [...ys], ticks) }) };
}

function drawModules() {
  const nodes = content.modules;
  const trace = {
    type: "icicle", ids: nodes.map((node) => String(node.id)), labels: nodes.map((node) => plain(node.name)),
    parents: nodes.map((node) => (node.parent === null ? "" : String(node.parent))), values: nodes.map((node) => node.time_s),
    branchvalues: "total", hoverinfo: "none", textinfo: "label+percent root", tiling: { orientation: "v" }, sort: true,
    customdata: nodes.map((node) => node.id), marker: { colors: nodes.map((node) => node.time_s), colorscale: isDark() ? [[0, "#22303B"], [1, "#2F6D94"]] : [[0, "#E6EFF6"], [1, "#7FB6DA"]], line: { width: nodes.length > mostFramed ? 0.2 : 1, color: ink("--paper") } },
    root: { color: ink("--soft") },
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
  if (state.view === "roofline" && content.rows.op) parts.push(content.colored_by === content.shaped_by ? `Color and shape tell the ${content.shaped_by} apart` : `Color tells the ${content.colored_by} apart, shape the ${content.shaped_by}`);
  if (state.view !== "modules" && content.filled_by.length) parts.push(`filling tells the ${content.filled_by.join(", ")} apart: ${content.fillings.map((words, at) => `${words} ${["full", "open", "dotted", "open and dotted"][at % 4]}`).join(", ")}`);
  if (isProfile && state.view !== "modules") parts.push("the area of a point is its share of the step");
  else if (count > mostBars) parts.push(`intervals are drawn up to ${mostBars} points`);
  else if (count && state.view !== "bandwidth" && state.view !== "modules") parts.push("bars: 95 % confidence interval of the median");
  if (state.view !== "modules" && rows.doubtful?.some(Boolean)) parts.push("a cross: flags speak against the point");
  if (state.view !== "modules" && rows.excess?.some(Boolean)) parts.push("a ring: above its roof");
  if (state.view === "roofline" && content.steps.length) parts.push("an arrow leads from version to version, or from run to run");
  else if (state.view === "roofline" && content.verdicts.some((one) => one.rows.length)) parts.push("an arrow leads from the baseline to the candidate");
  if (state.view === "roofline" && rows.cap?.some((cap) => cap !== null)) parts.push("a short line: no faster launch of that size, by the launch floor");
  if (state.view === "roofline") parts.push(...content.bands);
  if (content.estimates.length && isEstimateShown()) parts.push("a star is an estimate");
  if (state.view === "roofline" && new Set(content.roofs.map((roof) => roof.kind)).size > 1) parts.push("measured roofs are solid, those of datasheets dashed, those at the clock of the run dash-dotted");
  const text = parts.join("; ");
  return text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "";
}

// Points in the order in which arrows go through them: from left to right.
function pointsInOrder() {
  const view = currentView();
  const place = { roofline: rows.intensity, time: rows.least_s, bandwidth: rows.bytes_per_s }[view.key] ?? [];
  return shownRows().filter(view.has).sort((a, b) => place[a] - place[b] || rows.median_s[a] - rows.median_s[b] || a - b);
}
