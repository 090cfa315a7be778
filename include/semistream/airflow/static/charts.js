// The charts of a load: over its batches or over time, zoomed together, with the numbers under the pointer and as a table.
const section = document.getElementById("charts"), holder = section.querySelector(".charts");
const HEIGHT = 190, ROWS = 500;  // px of a chart; rows of a table
const MARKS = { version: ["V", "--c4"], settings: ["S", "--c5"], run: ["R", "--c8"], proof: ["P", "--c3"], resolved: ["L", "--c6"] };
let data = null, charts = [], axis = "batch", range = null, syncing = false, before = "";

const integer = new Intl.NumberFormat("en"), short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = { long: (n) => integer.format(n), axis: (n) => short.format(n) };
const seconds = { long: (n) => `${n < 10 ? Number(n.toPrecision(2)) : integer.format(Math.round(n))} s`, axis: (n) => `${short.format(n)} s` };
const sized = (n) => (n >= 1e6 || !n ? [n / 1e6, "MB"] : n >= 1e3 ? [n / 1e3, "kB"] : [n, "B"]);
const bytes = { long: (n) => { const [size, unit] = sized(n); return `${size.toFixed(unit === "B" ? 0 : 1)} ${unit}`; }, axis: (n) => { const [size, unit] = sized(n); return `${short.format(size)} ${unit}`; } };
const share = { long: (n) => `${(100 * n).toFixed(1)}%`, axis: (n) => `${Math.round(100 * n)}%` };
const rate = { long: (n) => integer.format(Math.round(n)), axis: (n) => short.format(n) };

// What is drawn. stacked: each series on top of those before it.
function wanted() {
  const named = (label, values) => ({ label, values });
  return [
    { title: "Rows of a batch", unit: count, series: [named("read", data.rows_read), named("matched", data.matched)] },
    { title: "Unmatched, by role and reason", unit: count, stacked: true, series: Object.entries(data.rejected).map(([kind, values]) => named(kind, values)) },
    { title: "Rows per second", unit: rate, series: [named("end to end", data.rate), named("inside the join", data.service_rate)] },
    { title: "Duration of a batch, by phase", unit: seconds, stacked: true, series: Object.entries(data.seconds).map(([phase, values]) => named(phase, values)) },
    { title: "Waiting tuples", unit: count, series: [named("waiting", data.waiting)] },
    { title: "Wait for master data", unit: seconds, series: [named("half of the tuples", data.wait_median), named("oldest", data.wait_longest)] },
    { title: "Memory", unit: bytes, series: [named("arrays, peak", data.memory_peak), named("M", data.memory_budget), named("resident, a worker", data.resident_peak)] },
    { title: "Through the cache", unit: share, series: [named("of the rows", data.cache)] },
    { title: "Read of R", unit: bytes, series: [named("bytes", data.bytes_read)] },
  ].filter((chart) => chart.series.some((series) => series.values.some((value) => value !== null)));
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function xs() {
  return axis === "time" ? data.at : data.at.map((_, n) => n);
}

function clock(at, long) {
  const form = timeFormat(long ? { dateStyle: "short", timeStyle: "medium" } : { timeStyle: "short" });
  return form.format(new Date(1000 * at));
}

// ---- one chart

function marksPlugin() {
  return { hooks: { draw: [(chart) => {
    const { ctx, bbox } = chart, x = xs(), ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${10 * ratio}px system-ui`;
    ctx.textAlign = "center";
    for (const mark of data.marks) {
      const left = chart.valToPos(x[mark.at], "x", true);
      if (left < bbox.left || left > bbox.left + bbox.width) continue;
      const [letter, name] = MARKS[mark.kind];
      ctx.strokeStyle = ctx.fillStyle = colour(name);
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(letter, left, bbox.top - 4 * ratio);
    }
    ctx.restore();
  }] } };
}

function stack(series) {
  const sums = data.at.map(() => 0);
  return series.map(({ values }) => values.map((value, n) => (value === null ? null : (sums[n] += value))));
}

function draw(box, spec) {
  const text = colour("--soft"), grid = { stroke: colour("--line"), width: 1 };
  const drawn = spec.stacked ? stack(spec.series) : spec.series.map((series) => series.values);
  // of a stack, the highest is drawn first
  const order = spec.series.map((_, n) => (spec.stacked ? spec.series.length - 1 - n : n));
  // what is under a series of a stack, down to the one beneath it, is filled
  const bands = spec.stacked ? order.slice(1).map((_, n) => ({ series: [n + 1, n + 2] })) : [];
  const few = data.at.length < 60;
  const options = {
    width: Math.max(box.clientWidth - 24, 200), height: HEIGHT,
    cursor: { sync: { key: "load" }, drag: { x: true, y: false } },
    scales: { x: { time: false }, y: { range: (_, least, most) => [0, (most || 1) * 1.08] } },
    axes: [
      { stroke: text, grid, ticks: grid, font: "11px system-ui", space: 70, size: 28, incrs: axis === "batch" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined,
        values: (_, ticks) => ticks.map((at) => (axis === "time" ? clock(at) : data.name[at] ?? "")) },
      { stroke: text, grid, ticks: grid, font: "11px system-ui", size: 58, values: (_, ticks) => ticks.map(spec.unit.axis) },
    ],
    series: [
      { label: axis === "time" ? "at" : "batch", value: (_, at, __, n) => (n === null ? "–" : `${data.name[n]}, ${clock(data.at[n], true)}`) },
      ...order.map((n) => ({
        label: spec.series[n].label, stroke: colour(`--c${(n % 8) + 1}`), width: 1.5, points: { show: few, size: 5 },
        fill: spec.stacked ? colour(`--c${(n % 8) + 1}`) + "66" : undefined,
        value: (_, __, ___, at) => { const value = at === null ? null : spec.series[n].values[at]; return value === null || value === undefined ? "–" : spec.unit.long(value); },
      })),
    ],
    hooks: { setScale: [(chart, key) => { if (key === "x" && !syncing) zoomTo(chart.scales.x.min, chart.scales.x.max); }] },
    plugins: [marksPlugin()], bands, padding: [16, 26, 0, 0],
  };
  const chart = new uPlot(options, [xs(), ...order.map((n) => drawn[n])], box.querySelector(".plot"));
  chart.root.querySelector("canvas").setAttribute("aria-hidden", "true");
  return chart;
}

function build() {
  for (const chart of charts) chart.destroy();
  const opened = new Set([...holder.querySelectorAll("details[open]")].map((details) => details.dataset.title));
  holder.replaceChildren();
  section.hidden = !data.at.length;
  if (section.hidden) return;
  charts = [];
  for (const spec of wanted()) {
    const box = document.createElement("section");
    box.className = "chart";
    box.setAttribute("aria-label", spec.title);
    box.innerHTML = '<h3></h3><div class="plot"></div><details><summary>As a table</summary><div class="table" tabindex="0" role="region"></div></details>';
    box.querySelector("h3").textContent = spec.title;
    const details = box.querySelector("details");
    details.dataset.title = spec.title;
    details.querySelector(".table").setAttribute("aria-label", `${spec.title}: table`);
    details.addEventListener("toggle", () => tabulate(details, spec));
    holder.append(box);
    charts.push(Object.assign(draw(box, spec), { spec, details }));
    details.open = opened.has(spec.title);
  }
  marks();
  if (range) zoomTo(...range);
}

// The numbers of the part that is seen, the newest first.
function tabulate(details, spec) {
  if (!details.open) return;
  const table = document.createElement("table"), head = table.createTHead().insertRow();
  for (const [n, label] of ["Batch", "Committed", ...spec.series.map((series) => series.label)].entries()) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = label;
    if (n !== 1) cell.className = "n";
    head.append(cell);
  }
  const body = table.createTBody(), x = xs(), [from, to] = range ?? [-Infinity, Infinity];
  for (let n = x.length - 1; n >= 0 && body.rows.length < ROWS; n--) {
    if (x[n] < from || x[n] > to) continue;
    const row = body.insertRow(), name = document.createElement("th");
    name.scope = "row";
    name.className = "n";
    name.textContent = data.name[n];
    row.append(name);
    row.insertCell().textContent = clock(data.at[n], true);
    for (const { values } of spec.series) {
      const cell = row.insertCell();
      cell.className = "n";
      cell.textContent = values[n] === null ? "–" : spec.unit.long(values[n]);
    }
  }
  details.querySelector(".table").replaceChildren(table);
}

function marks() {
  const list = document.querySelector("#marks ul");
  document.getElementById("marks").hidden = !data.marks.length;
  list.replaceChildren(...data.marks.map((mark) => {
    const item = document.createElement("li"), kind = document.createElement("span");
    kind.className = "kind";
    kind.textContent = MARKS[mark.kind][0];
    item.append(kind, ` batch ${data.name[mark.at]}, ${clock(data.at[mark.at], true)}: ${mark.text}`);
    return item;
  }).reverse());
}

// ---- the range of all charts

function whole() {
  const x = xs();
  return [x[0], x[x.length - 1]];
}

function zoomTo(from, to) {
  const [first, last] = whole();
  if (from === null || to === null || to <= from) [from, to] = [first, last];
  range = from <= first && to >= last ? null : [from, to];
  syncing = true;
  for (const chart of charts) {
    chart.setScale("x", { min: from, max: to });
    tabulate(chart.details, chart.spec);
  }
  queueMicrotask(() => { syncing = false; });
}

const ZOOM = {
  in: (from, to) => [from + (to - from) / 4, to - (to - from) / 4],
  out: (from, to) => [from - (to - from) / 2, to + (to - from) / 2],
  left: (from, to) => [from - (to - from) / 4, to - (to - from) / 4],
  right: (from, to) => [from + (to - from) / 4, to + (to - from) / 4],
  all: () => whole(),
};

section.querySelector("[role=toolbar]").addEventListener("click", (event) => {
  const { zoom, axis: wish } = event.target.dataset;
  if (zoom) {
    const [first, last] = whole(), [from, to] = ZOOM[zoom](...(range ?? [first, last]));
    const shift = Math.max(first - from, 0) - Math.max(to - last, 0), moves = zoom === "left" || zoom === "right";
    zoomTo(Math.max(from + (moves ? shift : 0), first), Math.min(to + (moves ? shift : 0), last));
  } else if (wish && wish !== axis) {
    const x = xs(), seen = range && [x.findIndex((at) => at >= range[0]), x.findLastIndex((at) => at <= range[1])];
    axis = wish;
    range = seen && xs()[seen[1]] > xs()[seen[0]] ? [xs()[seen[0]], xs()[seen[1]]] : null;
    for (const button of section.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", button.dataset.axis === axis);
    build();
  }
});

const older = document.getElementById("older");
older.addEventListener("click", () => {
  before = data.older;
  range = null;
  load();
});

// ---- data

async function load() {
  const answer = await fetch(section.dataset.series + (before ? `?before=${before}` : ""), { signal: AbortSignal.timeout(30000) });
  if (!answer.ok) return;  // nothing is committed, or the state above says why there is no answer
  data = await answer.json();
  older.hidden = !data.older;
  build();
}

let version = document.getElementById("version")?.dataset.version;
addEventListener("renewed", async () => {
  const now = document.getElementById("version")?.dataset.version;
  if (now === version) return;
  version = now;
  if (!before) await load();
  const details = document.getElementById("details");
  const answer = await fetch(details.dataset.details, { signal: AbortSignal.timeout(30000) });
  if (answer.ok) renew(details, await answer.text());
});

let width = holder.clientWidth;
addEventListener("resize", () => {
  if (!data || holder.clientWidth === width) return;
  width = holder.clientWidth;
  build();
});
addEventListener("theme", () => { if (data) build(); });
addEventListener("storage", (event) => { if (event.key === "timezone" && data) build(); });
load();
