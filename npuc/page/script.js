"use strict";
for (const button of document.querySelectorAll("button[data-shade]")) {
  button.addEventListener("click", () => {
    for (const other of document.querySelectorAll("button[data-shade]")) other.setAttribute("aria-pressed", other === button);
    // each box has its shades as properties of its own: the choice is theirs to resolve
    for (const box of document.querySelectorAll(".box rect")) box.style.setProperty("--shade", `var(--${button.dataset.shade}, 0%)`);
  });
}
const first = document.querySelector("button[data-shade]");
if (first) first.click();

// What a click does, Enter does on what has the focus.
for (const each of document.querySelectorAll(".sortable th, tr[data-layer], figure[data-layer]")) each.tabIndex = 0;

for (const heading of document.querySelectorAll(".sortable th")) {
  heading.addEventListener("click", () => {
    const body = heading.closest("table").tBodies[0], column = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") !== "descending";
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const order = (a, b) => (isNaN(a) || isNaN(b) ? String(a).localeCompare(String(b)) : a - b) * (down ? -1 : 1);
    body.append(...[...body.rows].sort((a, b) => order(key(a), key(b))));
  });
}

const fields = JSON.parse(document.getElementById("fields").textContent);
for (const field of document.querySelectorAll(".listing i")) field.title = fields[field.textContent.split("=")[0]] ?? "";

// One layer in every view: whatever belongs to it carries its number.
function choose(layer) {
  for (const element of document.querySelectorAll(".chosen")) element.classList.remove("chosen");
  const same = layer === undefined ? [] : document.querySelectorAll(`[data-layer="${layer}"]`);
  for (const element of same) element.classList.add("chosen");
  for (const view of document.querySelectorAll(".scroll")) {
    const element = view.querySelector(".chosen");
    if (!element) continue;
    const inner = element.getBoundingClientRect(), outer = view.getBoundingClientRect();
    if (inner.top < outer.top || inner.bottom > outer.bottom) view.scrollTop += inner.top - outer.top - outer.height / 3;
    if (inner.left < outer.left || inner.left > outer.right) view.scrollLeft += inner.left - outer.left - outer.width / 3;
  }
}
document.addEventListener("click", (event) => {
  if (event.target.closest("summary")) return;
  const element = event.target.closest("[data-layer]");
  if (element) choose(element.classList.contains("chosen") ? undefined : element.dataset.layer);
});
// A node of the drawing opens what it became.
function open(box) {
  for (const each of document.querySelectorAll("[data-fate]")) each.open = each.dataset.fate === box.dataset.node;
  document.querySelector("[data-fate][open]")?.scrollIntoView({ block: "nearest" });
}
for (const box of document.querySelectorAll("#network [data-node]")) box.addEventListener("click", () => open(box));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose();
  const focus = document.activeElement;
  if (event.key === "Enter" && focus.matches("#network [data-node]")) open(focus);
  if (event.key === "Enter" && focus.dataset.layer) choose(focus.dataset.layer);
  if (event.key === "Enter" && focus.tagName === "TH") focus.click();
});

// The network: zoom by buttons or Ctrl and the wheel, pan by dragging.
const graphs = document.querySelectorAll(".graph");
function resize(graph, factor, x = graph.clientWidth / 2, y = graph.clientHeight / 2) {
  const picture = graph.firstElementChild, box = picture.viewBox.baseVal;
  const before = picture.width.baseVal.value / box.width;
  const fitting = Math.min(1, graph.clientWidth / box.width, graph.clientHeight / box.height);
  const after = factor ? Math.min(Math.max(before * factor, 0.05), 4) : fitting;
  const left = graph.scrollLeft + x, top = graph.scrollTop + y;
  for (const side of ["width", "height"]) picture.setAttribute(side, box[side] * after);
  graph.scrollTo(left * (after / before) - x, top * (after / before) - y);
}
for (const button of document.querySelectorAll("[data-size]")) {
  button.addEventListener("click", () => { for (const graph of graphs) if (graph.offsetParent) resize(graph, Number(button.dataset.size)); });
}
for (const graph of graphs) {
  graph.style.setProperty("--picture", `${graph.firstElementChild.viewBox.baseVal.height + 2}px`);
  graph.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const outer = graph.getBoundingClientRect();
    resize(graph, event.deltaY < 0 ? 1.25 : 0.8, event.clientX - outer.left, event.clientY - outer.top);
  }, { passive: false });
  let dragged = 0;
  graph.addEventListener("pointerdown", () => { dragged = 0; });
  graph.addEventListener("pointermove", (event) => {
    if (event.buttons !== 1 || event.pointerType === "touch") return;
    dragged += Math.abs(event.movementX) + Math.abs(event.movementY);
    graph.scrollBy(-event.movementX, -event.movementY);
  });
  // the end of a drag is no click on what lies under it
  graph.addEventListener("click", (event) => { if (dragged > 4) event.stopPropagation(); });
}

// The passes, one at a time.
const steps = [...document.querySelectorAll(".pass")];
function step(number) {
  if (!steps[number]) return;
  for (const [at, each] of steps.entries()) each.hidden = at !== number;
  const graph = steps[number].querySelector(".graph");
  const made = [...steps[number].querySelectorAll(".box rect")].find((box) => box.style.getPropertyValue("--new") === "100%");
  if (made) graph.scrollTop += made.getBoundingClientRect().top - graph.getBoundingClientRect().top - graph.clientHeight / 3;
  for (const button of document.querySelectorAll("[data-pass]")) button.setAttribute("aria-pressed", Number(button.dataset.pass) === number);
}
for (const button of document.querySelectorAll("[data-pass]")) {
  button.addEventListener("click", () => step(Number(button.dataset.pass)));
}
for (const button of document.querySelectorAll("[data-step]")) {
  button.addEventListener("click", () => step(steps.findIndex((each) => !each.hidden) + Number(button.dataset.step)));
}

step(0);

// Drawings over time stretch to the right together; what is written on them keeps its width.
const views = [...document.querySelectorAll(".wide")];
const MOST = 4096, LETTER = 6.5;
let zoom = 1;
function stretch(factor, from = 0) {
  const before = zoom, left = views.length ? views[0].scrollLeft : 0;
  zoom = factor ? Math.min(Math.max(zoom * factor, 1), MOST) : 1;
  for (const view of views) {
    const picture = view.firstElementChild, width = picture.viewBox.baseVal.width;
    picture.style.setProperty("--stretch", zoom);
    picture.setAttribute("preserveAspectRatio", "none");
    picture.setAttribute("width", width * zoom);
    for (const bar of picture.querySelectorAll("[data-name]")) {
      const box = bar.querySelector("rect"), letters = Math.floor((box.width.baseVal.value * zoom - 8) / LETTER);
      bar.querySelector("text")?.remove();
      if (letters < 3) continue;
      const label = document.createElementNS("http://www.w3.org/2000/svg", "text");
      const name = bar.dataset.name;
      label.textContent = name.length > letters ? `\u2026${name.slice(1 - letters)}` : name;
      label.setAttribute("class", "inside");
      label.setAttribute("x", box.x.baseVal.value + 4 / zoom);
      label.setAttribute("y", box.y.baseVal.value + box.height.baseVal.value / 2 + 4);
      bar.append(label);
    }
    view.scrollLeft = (left + from) * (zoom / before) - from;
  }
}
for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", () => stretch(Number(button.dataset.zoom), views[0].clientWidth / 2));
}
for (const view of views) {
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    stretch(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - view.getBoundingClientRect().left);
  }, { passive: false });
  view.addEventListener("scroll", () => { for (const other of views) other.scrollLeft = view.scrollLeft; });
}
stretch(1);
