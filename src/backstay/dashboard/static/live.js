// Live pages: when the server hints that something changed, the page requests its own URL again and copies the
// differences into elements with data-live. The browser parses the answer; no text is turned into HTML here.

const GAP_MS = 1000; // between two requests, however much happens
const IDLE_MS = 20000; // request without a hint: ages on the page keep growing
const AGAIN_MS = 5000; // before reconnecting a refused stream

const address = document.body.dataset.pulse;
const says = document.querySelector("[data-pulse-says]");
let source = null;
let timer = null;
let lookedAt = performance.now();
let looking = false;
let missed = false; // a hint arrived during a request

if (address) {
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && follow());
  follow();
  plan(restMs());
}

function follow() {
  // A browser allows few connections per server: a hidden tab gives its own up.
  if (document.hidden) return stop();
  if (source) return;
  if (performance.now() - lookedAt > GAP_MS) plan(0);
  source = new EventSource(address);
  source.addEventListener("open", () => {
    tell("live", "Live");
    plan(GAP_MS); // changes between page load and stream start were not reported
  });
  source.addEventListener("changed", () => plan(GAP_MS));
  source.addEventListener("error", () => {
    if (!source) return;
    tell("lost", "Reconnecting");
    if (source.readyState !== EventSource.CLOSED) return; // the browser retries on its own
    source = null;
    setTimeout(follow, AGAIN_MS);
  });
}

function stop() {
  clearTimeout(timer);
  timer = null;
  source?.close();
  source = null;
}

function tell(state, word) {
  if (!says) return;
  says.hidden = false;
  says.dataset.state = state;
  says.lastElementChild.textContent = word;
}

function plan(gap) {
  if (looking) {
    missed = missed || gap < IDLE_MS;
    return;
  }
  clearTimeout(timer);
  timer = setTimeout(look, Math.max(0, lookedAt + gap - performance.now()));
}

// A page may say when newer figures will be available.
function restMs() {
  const soon = [...document.querySelectorAll("[data-soon]")].map((each) => Math.max(GAP_MS, Number(each.dataset.soon)));
  return Math.min(IDLE_MS, ...soon);
}

function look() {
  const request = new XMLHttpRequest();
  const done = () => {
    looking = false;
    lookedAt = performance.now();
    const gap = missed ? GAP_MS : restMs();
    missed = false;
    if (!document.hidden) plan(gap);
  };
  looking = true;
  request.open("GET", location.href);
  request.setRequestHeader("X-Backstay-Live", "1");
  request.responseType = "document";
  request.timeout = 15000;
  request.onload = () => {
    if (new URL(request.responseURL).pathname !== location.pathname) return location.reload(); // the session has ended
    if (request.status === 200 && request.responseXML) carryOver(request.responseXML);
    done();
  };
  request.onerror = request.ontimeout = done;
  request.send();
}

function carryOver(fresh) {
  const focused = document.activeElement;
  const atEnd = [...document.querySelectorAll("[data-follow]")].filter(
    (each) => each.scrollHeight - each.scrollTop - each.clientHeight < 8,
  );
  const found = new Map([...fresh.querySelectorAll("[data-live]")].map((each) => [each.dataset.live, each]));
  for (const now of document.querySelectorAll("[data-live]")) {
    const next = found.get(now.dataset.live);
    if (next && now.isConnected && now.nodeName === next.nodeName) change(now, next);
  }
  if (document.title !== fresh.title) document.title = fresh.title;
  for (const each of atEnd) each.scrollTop = each.scrollHeight;
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  document.dispatchEvent(new CustomEvent("backstay:changed"));
}

// State that belongs to the user, not the server: what is open, and which row is current.
const KEPT = new Set(["open", "data-chosen", "data-fresh"]);

function change(now, next) {
  if (now.isEqualNode(next) || now.hasAttribute("data-still")) return;
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !KEPT.has(name)) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (now.getAttribute(name) !== value && !KEPT.has(name)) now.setAttribute(name, value);
  }
  changeChildren(now, next);
}

function changeChildren(now, next) {
  const keyed = new Map();
  for (const child of now.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  const wanted = new Set([...next.children].map((child) => child.dataset?.key).filter(Boolean));
  let place = now.firstChild;
  for (const fresh of [...next.childNodes]) {
    const key = fresh.dataset?.key;
    while (place && !key && wanted.has(place.dataset?.key)) place = place.nextSibling;
    let same = key ? keyed.get(key) : place && isAlike(place, fresh) ? place : null;
    if (same && same !== place) now.insertBefore(same, place);
    if (!same) {
      same = now.insertBefore(document.importNode(fresh, true), place);
      if (key) same.dataset.fresh = "";
    } else if (same.nodeType === Node.ELEMENT_NODE) {
      change(same, fresh);
    } else if (same.data !== fresh.data) {
      same.data = fresh.data;
    }
    place = same.nextSibling;
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function isAlike(now, fresh) {
  return now.nodeType === fresh.nodeType && now.nodeName === fresh.nodeName && !now.dataset?.key;
}
