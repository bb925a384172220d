// Improves the job list and the job page. Everything works without it, too.

// Selection: the number of selected jobs, select a whole page, and disable buttons while nothing is selected.

// An empty list gets its form with the first job, so look it up each time.

const boxes = () => [...document.querySelectorAll('input[name="job"][form="bulk"]')];

function count() {
  const bulk = document.getElementById("bulk");
  if (!bulk) return;
  const all = bulk.querySelector("[data-all]");
  const box = all.querySelector("input");
  const words = bulk.querySelector("[data-ticked]");
  const every = boxes();
  const ticked = every.filter((each) => each.checked).length;
  words.dataset.start ??= words.textContent;
  words.textContent = ticked ? `${ticked} ${ticked === 1 ? "job" : "jobs"} selected` : words.dataset.start;
  words.dataset.ticked = ticked; // a phone has no room for the hint shown while there are none
  box.checked = ticked > 0 && ticked === every.length;
  box.indeterminate = ticked > 0 && ticked < every.length;
  all.hidden = false;
  for (const button of bulk.querySelectorAll("[data-needs-tick]")) button.disabled = ticked === 0;
}

document.addEventListener("change", (event) => {
  if (event.target.form?.id !== "bulk") return; // no field of the form may be called id: it would hide this one
  if (event.target.closest("[data-all]")) for (const each of boxes()) each.checked = event.target.checked;
  count();
});
document.addEventListener("backstay:changed", count);
addEventListener("pageshow", count);
count();

// Copy an id with one click.

for (const each of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(each.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  each.after(button);
}

// Scroll logs to their end, and the tree diagram to the current job.

for (const each of document.querySelectorAll("[data-follow]")) each.scrollTop = each.scrollHeight;
for (const each of document.querySelectorAll(".picture")) {
  const here = each.querySelector(".here");
  if (!here || each.scrollWidth <= each.clientWidth) continue;
  const box = here.getBBox();
  each.scrollLeft = box.x + box.width / 2 - each.clientWidth / 2;
  each.scrollTop = box.y + box.height / 2 - each.clientHeight / 2;
}

// Focus the first invalid field.

document.querySelector('[aria-invalid="true"]')?.focus();
