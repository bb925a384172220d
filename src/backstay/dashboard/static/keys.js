// Keyboard shortcuts: search, lists, pages. Ignored while the user types.
// Not a module: it runs in the page's head, so that it listens before anything is visible.

(() => {
"use strict";

const SEQUENCE_MS = 1200;
let began = -Infinity; // when g was pressed

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return escape();
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  if (performance.now() - began < SEQUENCE_MS) {
    began = -Infinity;
    const link = document.querySelector(`a[data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      location.assign(link.href);
    }
    return;
  }
  const act = ACTS[event.key];
  if (act && act(event) !== false) event.preventDefault();
});

const ACTS = {
  "/": () => focusOn(document.getElementById("search")),
  "?": () => document.getElementById("shortcuts")?.showModal(),
  g: () => { began = performance.now(); },
  j: () => choose(1),
  k: () => choose(-1),
  x: () => tick(),
  Enter: (event) => open(event.target),
};

function isTyping(target) {
  return target.isContentEditable || (target.matches("input, select, textarea") && !target.matches("[type=checkbox], [type=radio]"));
}

function focusOn(field) {
  if (!field) return false;
  field.focus();
  field.select?.();
}

function rows() {
  return [...document.querySelectorAll("[data-list] > tbody > tr, ul[data-list] > li, ol[data-list] > li")];
}

function chosen() {
  return document.querySelector("[data-chosen]");
}

function choose(step) {
  const all = rows();
  if (!all.length) return false;
  const now = chosen();
  const at = all.indexOf(now);
  const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))];
  now?.removeAttribute("data-chosen");
  next.setAttribute("data-chosen", "");
  next.scrollIntoView({ block: "nearest" });
  (next.querySelector("[data-open], a[href]") ?? next).focus({ preventScroll: true });
}

function tick() {
  const box = chosen()?.querySelector("input[type=checkbox]");
  if (!box) return false;
  box.click();
}

function open(target) {
  if (target.matches("a, button, summary, input")) return false; // it handles Enter itself
  const link = chosen()?.querySelector("[data-open], a[href]");
  if (!link) return false;
  link.click();
}

function escape() {
  const typing = document.activeElement;
  if (typing?.id === "search") typing.blur();
  closeOpened(null);
  chosen()?.removeAttribute("data-chosen");
}

// Panels close when the user clicks elsewhere.
function closeOpened(except) {
  for (const each of document.querySelectorAll("details.confirm[open], details.menu[open]")) {
    if (!except || !each.contains(except)) {
      const hadFocus = each.contains(document.activeElement);
      each.open = false;
      if (hadFocus && !except) each.querySelector("summary")?.focus();
    }
  }
}

document.addEventListener("click", (event) => closeOpened(event.target));

// Copying works where the browser allows it: over HTTPS and on localhost.
function offerCopies() {
  for (const button of navigator.clipboard ? document.querySelectorAll("button[data-copy]") : []) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).value);
      button.textContent = "Copied";
    });
  }
}

document.addEventListener("DOMContentLoaded", offerCopies);
})();
