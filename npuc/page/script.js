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
for (const span of document.querySelectorAll("[data-f]")) span.title = fields[span.dataset.f] ?? "";
