// One event stream per page. Fragments are rendered once on the console and morphed in place by htmx; a page that hears
// nothing for 5 s says so, greys its lanes and polls. Six connections per host is all that HTTP/1.1 gives a browser: at
// most four tabs hold a stream (Web Locks), the others poll.
const SILENT_MS = 5000, POLL_MS = 2000, RETRY_MS = 1000, SLOTS = 4;

class QsTime extends HTMLElement {
  static observedAttributes = ["datetime"];
  connectedCallback() { this.show(); }
  attributeChangedCallback() { this.show(); }
  show() {
    const at = new Date(this.getAttribute("datetime"));
    if (Number.isNaN(at.getTime())) return;
    const today = new Date().toDateString() === at.toDateString();
    const text = today ? at.toLocaleTimeString() : at.toLocaleString();
    if (this.textContent !== text) this.textContent = text;
    this.title = at.toISOString();
  }
}
customElements.define("qs-time", QsTime);

const root = document.querySelector("[data-live]");
const banner = document.getElementById("stale");
let heardAt = performance.now(), heardClock = new Date(), source = null, release = null;

function heard() {
  heardAt = performance.now();
  heardClock = new Date();
  setStale(false);
}

function setStale(stale) {
  if (document.body.classList.contains("is-stale") === stale) return;
  document.body.classList.toggle("is-stale", stale);
  if (!banner) return;
  banner.hidden = !stale;
  if (stale) banner.querySelector("[data-stale-since]").textContent = heardClock.toLocaleTimeString();
}

function frozen() { return new URLSearchParams(location.search).has("at"); }

async function apply(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  for (const fresh of [...parsed.body.children]) {
    const old = fresh.id && document.getElementById(fresh.id);
    if (!old || old.isEqualNode(fresh)) continue;
    await htmx.swap({ sourceElement: root, target: old, swap: "outerMorph", text: fresh.outerHTML });
  }
  document.dispatchEvent(new CustomEvent("qs:live"));
}

function toLogin() { location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search)); }

async function poll() {
  const [path, query] = root.dataset.live.split("?");
  try {
    const answer = await fetch(`${path}/snapshot?${query || ""}`, { signal: AbortSignal.timeout(SILENT_MS), headers: { "HX-Request": "true" } });
    if (answer.status === 401) { toLogin(); return; }
    if (answer.status === 404 && root.dataset.liveEvent) { location.reload(); return; }
    if (!answer.ok) return; // an error never replaces a fragment
    await apply(await answer.text());
    heard();
  } catch { /* the watchdog says it */ }
}

function open() {
  source = new EventSource(root.dataset.live);
  source.onmessage = (event) => { heard(); apply(event.data); };
  source.addEventListener("beat", heard);
  source.addEventListener("expired", toLogin);
  for (const name of (root.dataset.liveEvent || "").split(" ").filter(Boolean)) {
    source.addEventListener(name, (event) => { heard(); apply(event.data); });
  }
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
    source = null;
    poll();
    setTimeout(() => { if (release && !document.hidden) open(); }, RETRY_MS);
  };
}

function close() {
  source?.close();
  source = null;
  release?.();
  release = null;
}

async function start() {
  if (!navigator.locks) { open(); release = () => {}; return; }
  for (let slot = 0; slot < SLOTS; slot++) {
    const taken = await new Promise((answer) => {
      navigator.locks.request(`qs-stream-${slot}`, { ifAvailable: true }, (lock) => {
        if (!lock) { answer(false); return undefined; }
        answer(true);
        return new Promise((done) => { release = done; });
      });
    });
    if (taken) { open(); return; }
  }
}

if (root && !frozen()) {
  start();
  setInterval(() => {
    const silent = performance.now() - heardAt > SILENT_MS;
    if (!source || silent) poll();
    setStale(performance.now() - heardAt > SILENT_MS);
  }, POLL_MS);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (!source) { start(); poll(); }
  });
  addEventListener("pagehide", close);
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select") || event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.key === "l" || event.key === "L") {
    const here = new URL(location.href);
    if (here.searchParams.delete("at") === undefined && location.search !== here.search) location.assign(here);
  }
});
