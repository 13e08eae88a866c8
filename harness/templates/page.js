"use strict";
// The heat map's details, and its arrow keys. Everything is put into the page as text, never as HTML.
const pairs = JSON.parse(document.getElementById("pairs").textContent);
const dialog = document.getElementById("pair");
const list = dialog.querySelector("dl");
const KINDS = { signed_zero: "+0 against −0", infinity: "an infinity against another number",
  nan: "a NaN against a number", nan_payload: "two NaNs with other bits" };

function row(name, ...values) {
  const term = document.createElement("dt"), description = document.createElement("dd");
  term.textContent = name;
  description.append(...values);
  list.append(term, description);
}

function count(value) { return value.toLocaleString("en-US"); }

function floating(bits) {
  const view = new DataView(new ArrayBuffer(8));
  if (bits.length === 8) { view.setUint32(0, parseInt(bits, 16)); return view.getFloat32(0).toPrecision(9); }
  if (bits.length === 16) { view.setBigUint64(0, BigInt("0x" + bits)); return view.getFloat64(0).toPrecision(17); }
  return null;
}

function value(bits) {
  const number = floating(bits);
  return "0x" + bits + (number === null ? "" : " (as a floating-point number " + number + ")");
}

function histogram(counts) {
  const most = Math.max(...Object.values(counts)), table = document.createElement("table");
  for (const [power, number] of Object.entries(counts).sort((a, b) => a[0] - b[0])) {
    const line = table.insertRow(), bar = document.createElement("meter");
    const low = Number(power);
    line.insertCell().textContent = low === 1 ? "1" : count(low) + " – " + count(2 * low - 1);
    bar.max = most; bar.value = number; bar.textContent = count(number);
    line.insertCell().append(bar);
    line.insertCell().textContent = count(number);
  }
  return table;
}

function show(spot) {
  const pair = pairs[spot.dataset.pair], table = spot.closest("table"), line = spot.closest("tr");
  const [cases, labels] = [...table.tHead.rows].map(head => [...head.querySelectorAll(":scope > th:not([rowspan])")]);
  const place = spot.closest("td").cellIndex - 1, each = labels.length / cases.length;
  dialog.querySelector("h2").textContent = line.cells[0].textContent + " vs " + table.dataset.vs + ": " +
    labels[place].textContent + " at " + cases[Math.floor(place / each)].textContent;
  list.replaceChildren();
  const share = pair.numel ? " (" + (100 * pair.differ / pair.numel).toPrecision(3) + " %)" : "";
  row("elements that differ", count(pair.differ) + " of " + count(pair.numel) + share);
  row("largest difference", pair.max_abs === null ? "no pair is finite" : pair.max_abs.toExponential(3));
  const detail = pair.detail;
  if (!detail) { row("more", "this report has no distances"); return dialog.showModal(); }
  if (detail.ulp_max !== null) {
    row("distance in ULP", "median " + count(detail.ulp_median) + ", at most " + count(detail.ulp_max));
    row("elements by ULP", histogram(detail.ulp));
  }
  row("rows that differ", count(detail.rows_differ) + " of " + count(detail.rows));
  row("first difference", "index [" + detail.first.join(", ") + "]");
  row("here", value(detail.bits[0]));
  row("reference", value(detail.bits[1]));
  for (const [kind, number] of Object.entries(detail.kinds)) row(KINDS[kind] || kind, count(number));
  dialog.showModal();
}

for (const table of document.querySelectorAll(".map")) {
  const rows = [...table.querySelectorAll("tbody tr")].map(line => [...line.querySelectorAll("td > *")]);
  const all = rows.flat();
  all.forEach((spot, index) => { spot.tabIndex = index === 0 ? 0 : -1; });
  table.addEventListener("click", event => {
    const spot = event.target.closest("button");
    if (spot) show(spot);
  });
  // Only when asked for: in the page itself a second copy of each name would make it half as large again.
  table.addEventListener("mouseover", event => {
    const spot = event.target.closest("button");
    if (spot) spot.title = spot.getAttribute("aria-label");
  });
  table.addEventListener("keydown", event => {
    const y = rows.findIndex(line => line.includes(document.activeElement));
    if (y < 0) return;
    const x = rows[y].indexOf(document.activeElement);
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const next = step && rows[y + step[0]] && rows[y + step[0]][x + step[1]];
    if (!next) return;
    event.preventDefault();
    document.activeElement.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

// On paper nothing opens: what led to a verdict is printed with it.
const evidence = [...document.querySelectorAll(".verdicts details")];
let closed = [];
addEventListener("beforeprint", () => {
  closed = evidence.filter(one => !one.open);
  closed.forEach(one => { one.open = true; });
});
addEventListener("afterprint", () => closed.forEach(one => { one.open = false; }));
