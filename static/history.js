// The lag of every replica over time: symmetric log scale, the worst of each bucket as the line and min to max as a band,
// gaps left as gaps, an event rail on top. Dragging or stepping sets ?at=, and the page freezes there.
const box = document.querySelector("[data-history]");
const note = document.getElementById("history-note");
const HEIGHT = 260;
const RAIL = 18;
const EDGE = 36; // half a time label, so that the last one is whole
const RELOAD_MS = 5000;
// Distinguished by dash as well as by tone; the colours that mean attention and critical are no replica's.
const LOOKS = [
  ["--committed", []], ["--ink", [6, 4]], ["--soft", [2, 3]], ["--committed", [12, 6]],
  ["--ink", [1, 2]], ["--soft", [10, 4, 2, 4]], ["--committed", [2, 3]], ["--unknown", [4, 4]],
];
let plot = null;
let pressed = false; // while somebody drags, nothing is drawn anew: the plot under the pointer would be gone
let data = null;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (n) => new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(n).replace("K", "k");

function bytes(n) {
  const power = n < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(n) / 3));
  return `${+(n / 1000 ** power).toFixed(1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  return s < 120 ? `${+s.toFixed(1)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${+(s / 3600).toFixed(1)} h`;
}

// One line for each power of ten: those between say nothing that can be read.
function decades(u, axis, low, high) {
  const lines = [0];
  for (let line = 1; line <= high; line *= 10) lines.push(line);
  return lines;
}

// The unit that the waterline has: its columns of the history, its words, and a tick's.
const UNITS = {
  entries: { columns: ["lag", "lag_min", "lag_max"], spell: (v) => v.toLocaleString("en"), tick: short },
  bytes: { columns: ["lag_bytes", "lag_bytes", "lag_bytes"], spell: bytes, tick: bytes },
  seconds: { columns: ["lag_ms", "lag_ms", "lag_ms"], spell: duration, tick: duration },
};
const UNIT = UNITS[box?.dataset.unit] ?? UNITS.entries;
const frozenAt = () => Date.parse(box.dataset.at ?? "") / 1000;

const clock = (seconds, withDate) => new Date(seconds * 1000).toLocaleString(undefined, {
  hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(withDate ? { month: "short", day: "numeric" } : { second: "2-digit" }),
});

function goTo(seconds) {
  const here = new URL(location.href);
  here.searchParams.set("at", new Date(seconds * 1000).toISOString());
  location.assign(here);
}

// What the legend shows: the sample under the pointer, else the newest one.
const newest = (u, series) => u.data[series].findLast((v) => v != null);
const amount = (v) => (v == null ? "unknown" : UNIT.spell(v));

// Replica n has three columns: worst, lowest, highest; the last two only carry the band, which entries alone have.
function columns(history, ids) {
  const of = (id) => history.replicas[id];
  return [history.t, ...ids.flatMap((id) => UNIT.columns.map((name) => of(id)[name]))];
}

function lines(ids) {
  return ids.flatMap((id, n) => {
    const [tone, dash] = LOOKS[n % LOOKS.length];
    const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: false };
    return [
      { label: id, stroke: css(tone), dash, width: 1.6, spanGaps: false, points: { size: 3 }, value: (u, v, series, at) => amount(at == null ? newest(u, series) : v) },
      { ...edge, label: `${id} lowest`, class: "edge" }, { ...edge, label: `${id} highest`, class: "edge" },
    ];
  });
}

function bands(ids) {
  return ids.map((_, n) => ({ series: [3 * n + 3, 3 * n + 2], fill: css(LOOKS[n % LOOKS.length][0]) + "26" }));
}

function rail(u) {
  const { ctx } = u;
  const scale = devicePixelRatio;
  ctx.save();
  for (const event of data.events) {
    const x = u.valToPos(Date.parse(event.at) / 1000, "x", true);
    if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
    ctx.fillStyle = css({ critical: "--critical", warning: "--attention", error: "--critical" }[event.severity] ?? "--ink");
    ctx.beginPath();
    ctx.moveTo(x - 4 * scale, u.bbox.top - RAIL * scale);
    ctx.lineTo(x + 4 * scale, u.bbox.top - RAIL * scale);
    ctx.lineTo(x, u.bbox.top - (RAIL - 8) * scale);
    ctx.fill();
    ctx.fillRect(x - scale / 2, u.bbox.top - RAIL * scale, scale, (RAIL - 2) * scale);
  }
  const at = frozenAt();
  if (!Number.isNaN(at)) {
    ctx.fillStyle = css("--ink");
    ctx.fillRect(u.valToPos(at, "x", true) - scale, u.bbox.top - RAIL * scale, 2 * scale, u.bbox.height + RAIL * scale);
  }
  ctx.restore();
}

function nearestEvent(u) {
  const shown = data.events.filter((one) => Math.abs(u.valToPos(Date.parse(one.at) / 1000, "x") - u.cursor.left) < 6);
  note.textContent = shown.length ? shown.map((one) => `${clock(Date.parse(one.at) / 1000)} ${one.text || one.kind}`).join(" · ") : "";
}

function draw(history) {
  data = history;
  const ids = Object.keys(history.replicas);
  const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid") }, font: "12px system-ui, sans-serif" };
  const until = Date.parse(history.until) / 1000;
  const wide = Number(box.dataset.rangeS) >= 86400;
  const options = {
    width: box.clientWidth, height: HEIGHT, series: [{ label: "At", value: (u, t) => { const at = t ?? newest(u, 0); return at == null ? "no sample yet" : clock(at, wide); } }, ...lines(ids)], bands: bands(ids), padding: [RAIL, EDGE, 0, 0],
    scales: {
      x: { range: () => [Date.parse(history.since) / 1000, until] },
      y: { distr: 4, asinh: 1, range: (_, low, high) => [0, Math.max(10, 1.5 * (high ?? 0))] },
    },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => clock(t, wide)), space: wide ? 110 : 80 }, { ...axis, size: 64, splits: decades, values: (_, ticks) => ticks.map((v) => (v == null || v < 0 ? "" : UNIT.tick(v))) }],
    cursor: { drag: { x: false, y: false }, points: { size: 6 } },
    legend: { markers: { dash: (u, n) => ({ undefined: "solid", 1: "dotted", 2: "dotted" })[u.series[n].dash?.[0]] ?? "dashed" } },
    hooks: { draw: [rail], setCursor: [nearestEvent] },
  };
  plot?.destroy();
  plot = new uPlot(options, columns(history, ids), box);
  scrub(plot);
}

// Press and drag: the lanes freeze at the moment where the pointer is let go.
function scrub(u) {
  u.over.addEventListener("pointerdown", (event) => { pressed = true; u.over.setPointerCapture(event.pointerId); });
  u.over.addEventListener("pointercancel", () => { pressed = false; });
  u.over.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    pressed = false;
    const left = event.clientX - u.over.getBoundingClientRect().left;
    const seconds = u.posToVal(left, "x");
    const nearest = data.t.reduce((best, t) => (Math.abs(t - seconds) < Math.abs(best - seconds) ? t : best), data.t[0]);
    if (nearest !== undefined) goTo(nearest);
  });
}

function step(by, overEvents) {
  if (!data) return;
  const from = Number.isNaN(frozenAt()) ? Infinity : frozenAt();
  const times = (overEvents ? data.events.map((one) => Date.parse(one.at) / 1000) : [...data.t]).sort((a, b) => a - b);
  const next = by < 0 ? times.findLast((t) => t < from - 0.5) : times.find((t) => t > from + 0.5);
  if (next !== undefined) goTo(next);
}

async function load() {
  const at = frozenAt();
  const range = Number(box.dataset.rangeS);
  const now = Date.now() / 1000;
  // A frozen moment stays in the middle where there is a future to show.
  const until = Number.isNaN(at) ? now : Math.max(at + 1, Math.min(now, at + range / 2));
  const iso = (s) => encodeURIComponent(new Date(s * 1000).toISOString());
  try {
    const answer = await fetch(`${box.dataset.history}?since=${iso(until - range)}&until=${iso(until)}&points=${Math.max(60, Math.round(box.clientWidth / 2))}`);
    if (!answer.ok) return;
    const history = await answer.json();
    if (!pressed) draw(history);
  } catch {
    // The stale banner says it; what was drawn stays.
  }
}

if (box) {
  load();
  if (Number.isNaN(frozenAt())) setInterval(() => { if (!document.hidden && !plot?.over.matches(":hover, :active")) load(); }, RELOAD_MS);
  new ResizeObserver(() => plot?.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw(data));
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select")) return;
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    step(event.key === "ArrowLeft" ? -1 : 1, event.shiftKey);
  });
}
