// The lag history: one line per replica on a symmetric log scale, with the worst of each bucket and gaps left as gaps.
const box = document.querySelector("[data-history]");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let plot = null, data = null, cursor = null;

const HUES = ["--committed", "--attention", "--critical", "--unknown", "--ink", "--soft"];
const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4], [1, 2], [12, 6]];

function series(history) {
  const ids = Object.keys(history.replicas).sort();
  return {
    ids,
    values: [history.t, ...ids.map((id) => history.replicas[id].lag)],
    series: [{}, ...ids.map((id, n) => ({
      label: id, stroke: css(HUES[n % HUES.length]), width: 1.5, dash: DASHES[n % DASHES.length], spanGaps: false,
      value: (_, v) => (v == null ? "—" : v.toLocaleString()),
    }))],
  };
}

function rail(history) {
  return (u) => {
    const { ctx } = u;
    ctx.save();
    ctx.fillStyle = css("--ink");
    for (const event of history.events) {
      const x = u.valToPos(Date.parse(event.at) / 1000, "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      ctx.fillRect(x - 1, u.bbox.top, 2, 8);
    }
    ctx.restore();
  };
}

function draw(history) {
  data = history;
  const { values, series: lines } = series(history);
  const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid") } };
  const options = {
    width: box.clientWidth, height: 240, series: lines,
    scales: { x: { time: true }, y: { distr: 4, asinh: 1, range: (u, min, max) => [0, Math.max(10, max ?? 10)] } },
    axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map((v) => v.toLocaleString()) }],
    cursor: { drag: { x: false, y: false } },
    hooks: { draw: [rail(history)] },
  };
  plot?.destroy();
  plot = new uPlot(options, values, box);
  plot.over.addEventListener("click", () => { if (plot.cursor.idx != null) goTo(history.t[plot.cursor.idx]); });
}

function goTo(seconds) {
  const here = new URL(location.href);
  here.searchParams.set("at", new Date(seconds * 1000).toISOString());
  location.assign(here);
}

function step(by, event) {
  if (!data || !data.t.length) return;
  const at = Date.parse(new URLSearchParams(location.search).get("at") ?? "") / 1000;
  if (event) {
    const times = data.events.map((one) => Date.parse(one.at) / 1000).sort((a, b) => a - b);
    const from = Number.isNaN(at) ? Infinity : at;
    const next = by < 0 ? times.filter((t) => t < from - 0.5).at(-1) : times.find((t) => t > from + 0.5);
    if (next !== undefined) goTo(next);
    return;
  }
  cursor = Number.isNaN(at) ? data.t.length - 1 : data.t.findLastIndex((t) => t <= at + 0.5);
  const wanted = Math.min(data.t.length - 1, Math.max(0, cursor + by));
  goTo(data.t[wanted]);
}

async function load() {
  try {
    const answer = await fetch(box.dataset.history);
    if (answer.ok) draw(await answer.json());
  } catch { /* the stale banner says it */ }
}

if (box) {
  load();
  if (!new URLSearchParams(location.search).has("at")) setInterval(() => { if (!document.hidden) load(); }, 10000);
  addEventListener("resize", () => plot?.setSize({ width: box.clientWidth, height: 240 }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw(data));
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select")) return;
    if (event.key === "ArrowLeft") step(-1, event.shiftKey);
    if (event.key === "ArrowRight") step(1, event.shiftKey);
  });
}
