// The live contract: one event stream a page, fragments morphed in place; a page that hears nothing new of its group
// says so within 5 s, greys its lanes and polls. Its tab says how severe it is.
//
// A frozen server raises no event: a watchdog decides. A browser has six connections a host: at most SLOTS tabs hold a
// stream (Web Locks), hidden ones none, others poll. An error answer replaces nothing; 401: login.
import "./time.js";

const SILENT_MS = 4500; // two beats missed; a look later still below 5 s
const WATCH_MS = 250;
const POLL_MS = 2000;
const RETRY_MS = 1000;
const SLOTS = 3;

const clock = () => performance.now();
const root = document.querySelector("[data-live]");
const banner = document.getElementById("stale");
const { title } = document;
let heardAt = clock();
let heardClock = new Date();
let asOf = null; // of what is drawn; a beat that draws it again is as good as none
let movedAt = clock();
let movedClock = new Date();
let polledAt = 0;
let source = null;
let streamedAt = 0; // by the stream, not a poll
let release = null; // gives the slot back
let starting = false;
let polling = false;
let applying = Promise.resolve();

function heard() {
  heardAt = clock();
  heardClock = new Date();
}

function noteMoment() {
  const word = root.querySelector(".word")?.textContent;
  document.title = word ? `${word}: ${title}` : title;
  const drawn = root.querySelector("[data-as-of]")?.dataset.asOf ?? null;
  if (drawn !== null && drawn === asOf) return;
  asOf = drawn;
  movedAt = clock();
  movedClock = new Date();
}

// A tab that was hidden has a second to read what came.
let lookedAt = 0;
function look() {
  const now = clock();
  if (document.hidden || now - lookedAt > 5 * WATCH_MS) {
    const least = now - SILENT_MS + 1000;
    [heardAt, movedAt, streamedAt] = [heardAt, movedAt, streamedAt].map((at) => Math.max(at, least));
  }
  lookedAt = now;
}

const unheard = () => clock() - heardAt > SILENT_MS;
const unmoved = () => asOf !== null && clock() - movedAt > SILENT_MS;

function showStale(stale) {
  if (document.body.classList.contains("is-stale") === stale) return;
  document.body.classList.toggle("is-stale", stale);
  const since = !root || unheard() ? heardClock : movedClock;
  if (stale) banner.querySelector("qs-time").setAttribute("datetime", since.toISOString());
  banner.hidden = !stale;
}

// Every element with an id, in <hx-partial> or not, replaces its namesake by a morph.
async function morph(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const fresh = [...parsed.body.children].flatMap((one) => (one.localName === "hx-partial" ? [...one.children] : [one]));
  for (const one of fresh) {
    const old = one.id && document.getElementById(one.id);
    if (old) await htmx.swap({ sourceElement: root, target: old, swap: "outerMorph", text: one.outerHTML });
  }
  noteMoment();
}

// In turn: a morph that overtakes another would show the past.
function apply(html) {
  applying = applying.then(() => morph(html)).catch((error) => console.error("a fragment could not be shown", error));
  return applying;
}

function toLogin() {
  location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
}

async function poll() {
  if (polling) return;
  polling = true;
  const [path, query] = root.dataset.live.split("?");
  try {
    const answer = await fetch(`${path}/snapshot?${query ?? ""}`, {
      headers: { "HX-Request": "true" }, signal: AbortSignal.timeout(SILENT_MS), cache: "no-store",
    });
    if (answer.status === 401) return toLogin();
    // What was followed ended: its page shows how.
    if (answer.status === 404) return location.reload();
    if (answer.ok) {
      await apply(await answer.text());
      heard();
    }
  } catch {
    // the watchdog says it
  } finally {
    polling = false;
  }
}

function open() {
  source = new EventSource(root.dataset.live);
  streamedAt = clock();
  const said = () => { heard(); streamedAt = heardAt; };
  const fragment = (event) => { said(); apply(event.data); };
  source.onmessage = fragment;
  source.addEventListener("beat", said);
  source.addEventListener("expired", toLogin);
  for (const name of (root.dataset.liveEvent ?? "").split(" ").filter(Boolean)) source.addEventListener(name, fragment);
  source.onerror = () => {
    if (source?.readyState !== EventSource.CLOSED) return; // it tries again
    close();
    poll(); // says why: a dead session, or a page that is over
    setTimeout(start, RETRY_MS);
  };
}

function close() {
  source?.close();
  source = null;
  release?.();
  release = null;
}

// Whether this tab may hold a stream.
async function slot() {
  if (!navigator.locks) return false; // plain HTTP beyond loopback: poll
  for (let number = 0; number < SLOTS; number++) {
    const taken = await new Promise((answer) => {
      navigator.locks.request(`quorumscope-stream-${number}`, { ifAvailable: true }, (lock) => {
        answer(lock !== null);
        return lock && new Promise((done) => { release = done; });
      });
    });
    if (taken) return true;
  }
  return false;
}

async function start() {
  if (source || starting || document.hidden) return;
  starting = true;
  try {
    if (await slot()) open();
  } finally {
    starting = false;
  }
}

if (root) {
  start();
  noteMoment();
  setInterval(() => {
    look();
    if (document.hidden) return;
    const silent = unheard();
    showStale(silent || unmoved());
    // A connection lost without a word raises no error: another follows.
    if (source && clock() - streamedAt > SILENT_MS) close();
    if (clock() - polledAt < POLL_MS) return;
    polledAt = clock();
    if (!source || silent) poll();
    if (!source) start();
  }, WATCH_MS);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return close();
    start();
    poll();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) start(); });
}

// A page without a stream: htmx asks for parts again, or this asks whether the console answers. An error answer
// replaces nothing, so it is said.
document.addEventListener("htmx:response:error", () => showStale(true));
document.addEventListener("htmx:error", () => showStale(true));
const asksAgain = () => document.querySelector('[hx-trigger^="every"]') !== null;

async function ask() {
  try {
    const answer = await fetch("/healthz", { signal: AbortSignal.timeout(SILENT_MS), cache: "no-store" });
    if (answer.ok) heard();
  } catch {} // the watchdog says it
}

if (!root) {
  let silent = false;
  setInterval(() => {
    look();
    if (document.hidden) return;
    if (unheard() !== silent) {
      silent = !silent;
      if (silent || !asksAgain()) showStale(silent); // parts asked for again say it themselves
    }
    if (asksAgain() || clock() - polledAt < POLL_MS) return;
    polledAt = clock();
    ask();
  }, WATCH_MS);
}
document.addEventListener("htmx:after:swap", () => { if (!root) { heard(); showStale(false); } });

document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (event.key.toLowerCase() === "l") document.getElementById("back-to-live")?.click();
});
