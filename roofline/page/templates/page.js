// What happens when: each event changes the state, and `update` draws from it.
function update({ plot = true, table = true, filters = true } = {}) {
  const shown = shownRows();
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  byId("theme").value = state.theme;
  if (byId("search").value !== state.query) byId("search").value = state.query;
  if (filters) keepingFocus(byId("groups"), drawFilters);
  drawViews();
  if (plot) drawPlot(shown);
  else drawRing();
  if (table) drawTable(shown);
  byId("card").replaceChildren(...(state.picked === null ? [element("p", { class: "hint", text: "Choose a point or a row to see all that is known of it." })] : card(state.picked)));
  byId("told").textContent = state.picked === null ? "" : sentence(state.picked);
  keepLink();
}

// Check boxes are drawn anew; who types stays where they were.
function keepingFocus(inside, draw) {
  const all = () => [...inside.querySelectorAll("input, button")];
  const place = all().indexOf(document.activeElement);
  draw();
  if (place >= 0) all()[place]?.focus();
}

function drawViews() {
  byId("views").replaceChildren(...(views.length < 2 ? [] : views.map((view) => element("button", { type: "button", text: view.title, "data-view": view.key, "aria-pressed": String(view.key === state.view), onclick: () => {
    state.view = view.key;
    update();
    byId("views").querySelector("[aria-pressed=true]").focus();
  } }))));
}

function pick(i, isolate = false) {
  const isAgain = isolate && state.isolated && state.picked !== null && seriesOf(i) === seriesOf(state.picked);
  state.picked = i;
  if (isolate) state.isolated = !isAgain;
  const at = sortedRows(shownRows()).indexOf(i);
  if (at >= 0) state.first = Math.floor(at / rowsAtOnce) * rowsAtOnce;
  const focused = document.activeElement?.closest?.("#rows tbody") !== null;
  update({ plot: isolate, filters: isolate });
  if (focused) byId("rows").querySelector(`tr[data-row="${i}"] button`)?.focus();
}

function showAll() {
  state.query = "";
  state.picked = null;
  state.isolated = false;
  state.ranges = {};
  usualHidden();
  update();
}

function step(by) {
  const order = pointsInOrder();
  if (!order.length) return;
  const at = state.picked === null ? -1 : order.indexOf(state.picked);
  const next = by === "first" ? 0 : by === "last" ? order.length - 1 : at < 0 ? 0 : (at + by + order.length) % order.length;
  pick(order[next]);
}

function zoom(factor) {
  const { xaxis, yaxis } = byId("plot")._fullLayout;
  if (!xaxis || state.view === "modules") return;
  const around = (range) => {
    const middle = (range[0] + range[1]) / 2;
    return range.map((end) => middle + (end - middle) * factor);
  };
  state.ranges[state.view] = [around(xaxis.range), around(yaxis.range)];
  update({ table: false, filters: false });
}

function whole() {
  delete state.ranges[state.view];
  update({ table: false, filters: false });
}

const keys = {
  ArrowRight: () => step(1), ArrowDown: () => step(1), ArrowLeft: () => step(-1), ArrowUp: () => step(-1),
  Home: () => step("first"), End: () => step("last"), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: whole,
  Enter: () => state.picked !== null && pick(state.picked, true),
};

function listen() {
  byId("plot").addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || state.picked === null) return;
    const wasIsolated = state.isolated;
    state.picked = null;
    state.isolated = false;
    update({ plot: wasIsolated, filters: false });
  });
  let typing = null;
  byId("search").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      state.query = event.target.value;
      state.first = 0;
      update({ filters: false });
    }, 120);
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("theme").addEventListener("change", (event) => {
    state.theme = event.target.value;
    update();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => update());
  const clicks = {
    all: showAll, reset: whole, "zoom-in": () => zoom(0.7), "zoom-out": () => zoom(1 / 0.7), print: () => window.print(),
    before: () => turn(-rowsAtOnce), after: () => turn(rowsAtOnce), png: savePicture,
    csv: () => save("rows.csv", new Blob([csvText(sortedRows(shownRows()))], { type: "text/csv" })), link: copyLink,
  };
  for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
  window.addEventListener("hashchange", () => {
    readLink();
    update();
  });
  window.addEventListener("beforeprint", () => drawForPrint(true));
  window.addEventListener("afterprint", () => drawForPrint(false));
  listenToPlot();
}

// Paper is light and as wide as it is, and has no second page of a table to turn to.
function drawForPrint(isPrinting) {
  document.documentElement.classList.toggle("printing", isPrinting);
  state.printing = isPrinting;
  update({ table: false });
  drawTable(shownRows(), isPrinting ? 1000 : rowsAtOnce);
  Plotly.Plots.resize(byId("plot"));
}

function listenToPlot() {
  const plot = byId("plot");
  new ResizeObserver(drawRing).observe(plot);
  plot.on("plotly_click", ({ points }) => typeof points[0].customdata === "number" && state.view !== "modules" && pick(points[0].customdata, true));
  plot.on("plotly_hover", ({ points: [point], event }) => {
    const roof = point.data.meta?.[point.pointNumber];
    if (roof !== undefined) showTip(factCard(content.roofs[roof].label, roofFacts(content.roofs[roof])), event);
    else if (typeof point.customdata === "number") showTip(state.view === "modules" ? moduleCard(point.customdata) : card(point.customdata), event);
  });
  plot.on("plotly_unhover", () => (byId("tip").hidden = true));
  plot.on("plotly_doubleclick", whole);
  plot.on("plotly_relayout", (change) => {
    if (state.view === "modules" || !Object.keys(change).some((name) => name.includes("range"))) return;
    const { xaxis, yaxis } = plot._fullLayout;
    state.ranges[state.view] = [[...xaxis.range], [...yaxis.range]];
    update({ table: false, filters: false });
  });
}

function showTip(parts, { clientX, clientY }) {
  const tip = byId("tip");
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, clientX + 16 + width > innerWidth ? clientX - 16 - width : clientX + 16)}px`;
  tip.style.top = `${Math.max(8, Math.min(clientY + 16, innerHeight - height - 8))}px`;
}

function moduleCard(id) {
  const node = content.modules[id];
  const names = [];
  for (let one = node; one.parent !== null; one = content.modules[one.parent]) names.unshift(one.name);
  const share = percent((100 * node.time_s) / content.modules[0].time_s);
  return [element("p", { class: "name", text: names.join(" › ") || node.name }), element("p", { text: `${time(node.time_s)}, ${share} of the step${node.calls ? `, ${node.calls} calls` : ""}` })];
}

function turn(by) {
  state.first = Math.max(0, state.first + by);
  update({ plot: false, filters: false });
}

function savePicture() {
  const { width, height } = byId("plot").getBoundingClientRect();
  return Plotly.downloadImage(byId("plot"), { format: "png", width: Math.round(width), height: Math.round(height), scale: 2, filename: "roofline" });
}

function copyLink() {
  keepLink();
  navigator.clipboard?.writeText(location.href).then(() => (byId("status").textContent = "The link is copied; the address bar has it too."), () => (byId("status").textContent = "The address bar has the link."));
}

readLink();
update();
listen();
