// What a list of jobs and a job's page do a little better with a script. Without it everything works too.

// Ticks: how many there are, all of a page at once, and none while nothing is ticked.

// A list that was empty gets its form with the first job: it is looked for anew each time.

const boxes = () => [...document.querySelectorAll('input[name="id"][form="bulk"]')];

function count() {
  const bulk = document.getElementById("bulk");
  if (!bulk) return;
  const all = bulk.querySelector("[data-all]");
  const box = all.querySelector("input");
  const words = bulk.querySelector("[data-ticked]");
  const every = boxes();
  const ticked = every.filter((each) => each.checked).length;
  words.dataset.start ??= words.textContent;
  words.textContent = ticked ? `${ticked} ${ticked === 1 ? "job" : "jobs"} ticked` : words.dataset.start;
  words.dataset.ticked = ticked; // a phone has no room for what it says while none is
  box.checked = ticked > 0 && ticked === every.length;
  box.indeterminate = ticked > 0 && ticked < every.length;
  all.hidden = false;
  for (const button of bulk.querySelectorAll("[data-needs-tick]")) button.disabled = ticked === 0;
}

document.addEventListener("change", (event) => {
  if (event.target.form?.id !== "bulk") return;
  if (event.target.closest("[data-all]")) for (const each of boxes()) each.checked = event.target.checked;
  count();
});
document.addEventListener("holdfast:changed", count);
addEventListener("pageshow", count);
count();

// An id is copied with one click.

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

// A log is read at its end, and the tree begins with the job that one came for.

for (const each of document.querySelectorAll("[data-follow]")) each.scrollTop = each.scrollHeight;
for (const each of document.querySelectorAll(".picture")) {
  const here = each.querySelector(".here");
  if (!here || each.scrollWidth <= each.clientWidth) continue;
  const box = here.getBBox();
  each.scrollLeft = box.x + box.width / 2 - each.clientWidth / 2;
  each.scrollTop = box.y + box.height / 2 - each.clientHeight / 2;
}

// The first thing that is wrong with a form is where one goes on.

document.querySelector('[aria-invalid="true"]')?.focus();
