// The table of rows: the same as the picture for who reads, listens or types. Fifty rows stand in it at a time.
const rowsAtOnce = 50;

function sortedRows(shown) {
  const column = columns.find((one) => one.key === state.sort);
  if (!column) return shown;
  const value = column.number ? (i) => rows[column.key][i] : (i) => column.text(i).toLowerCase();
  const sign = state.descending ? -1 : 1;
  const isMissing = (found) => found === null || found === undefined || found === "";
  return [...shown].sort((a, b) => {
    const [first, second] = [value(a), value(b)];
    if (isMissing(first) || isMissing(second)) return isMissing(first) - isMissing(second) || a - b;
    return (first < second ? -sign : first > second ? sign : 0) || a - b;
  });
}

function drawTable(shown, most = rowsAtOnce) {
  const sorted = sortedRows(shown);
  state.first = Math.min(state.first, Math.max(0, Math.floor((sorted.length - 1) / rowsAtOnce) * rowsAtOnce));
  const here = sorted.slice(state.first, state.first + most);
  const head = element("thead", {}, element("tr", {}, ...columns.map(heading)));
  const body = element("tbody", {}, ...here.map(bodyRow));
  byId("rows").replaceChildren(element("caption", { text: "Each row is a point of the picture; the button in it shows all that is known" }), head, body);
  const last = state.first + here.length;
  byId("status").textContent = sorted.length ? `Rows ${(state.first + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${sorted.length.toLocaleString("en")} shown, ${rowCount.toLocaleString("en")} in all.` : rowCount ? `No row is shown, of ${rowCount.toLocaleString("en")} in all.` : "There is no row.";
  byId("before").disabled = state.first === 0;
  byId("after").disabled = last >= sorted.length;
}

function heading(column) {
  const is = state.sort === column.key;
  const arrow = is ? (state.descending ? " ▼" : " ▲") : "";
  const button = element("button", { type: "button", text: column.title + arrow, "data-sort": column.key, "aria-label": `sort by ${column.title}`, onclick: () => {
    state.descending = is ? !state.descending : Boolean(column.number);
    state.sort = column.key;
    state.first = 0;
    update({ plot: false, filters: false });
    byId("rows").querySelector(`button[data-sort="${column.key}"]`).focus();
  } });
  return element("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": is ? (state.descending ? "descending" : "ascending") : null }, button);
}

function bodyRow(i) {
  const cells = columns.map((column, at) => {
    const text = column.text(i);
    if (at === 0) {
      const button = element("button", { type: "button", text, title: text, "aria-label": `${text} ${rows.case[i]} ${rows.dtype[i]} ${rows.provider[i]}`, onclick: () => pick(i) });
      return element("th", { scope: "row" }, button);
    }
    return element("td", { class: column.number ? "number" : null, text, title: column.number ? null : text });
  });
  return element("tr", { "data-row": i, "aria-current": state.picked === i ? "true" : null }, ...cells);
}

function csvText(shown) {
  const names = Object.keys(rows).filter((name) => !["color", "shape", "filling", "drawn", "doubtful", "cap", "low", "high", "machine"].includes(name));
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : typeof value === "object" ? Object.keys(value).join(",") : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = shown.map((i) => names.map((name) => cell(name === "run" ? content.runs[rows.run[i]].run_id : rows[name][i])).join(","));
  return [names.join(","), ...lines].join("\n") + "\n";
}
