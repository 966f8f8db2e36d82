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

const all = (query, within = document) => [...within.querySelectorAll(query)];
const data = JSON.parse(document.getElementById("data").textContent);
const layers = data.layers ?? [], nodes = data.nodes ?? [], fields = data.fields ?? {};

// The workbench: one view at the left, the selection at the right, time below.
const sections = all("#views > section"), told = document.getElementById("told");
function show(id) {
  const asked = document.getElementById(id);
  if (!sections.includes(asked)) return asked?.scrollIntoView({ block: "start" });
  for (const each of sections) each.hidden = each !== asked;
  for (const each of all("nav a")) each.toggleAttribute("aria-current", each.hash === `#${id}`);
  asked.parentElement.scrollTop = 0;
  if (id === "instructions") list_instructions();
}
const shown = () => sections.find((each) => !each.hidden)?.id;

// The listing is text until it is asked for; then a line and a field are elements, which say what they mean.
function list_instructions() {
  for (const run of all(".listing pre")) {
    if (run.firstElementChild) return;
    const lines = run.textContent.split("\n");
    run.replaceChildren();
    for (const line of lines) {
      const row = make(run, "span");
      for (const part of line.split(/(?= )/)) {
        const meaning = fields[part.slice(1).split("=")[0]];
        meaning && part.includes("=") ? make(row, "i", part, { title: meaning }) : row.append(part);
      }
    }
  }
}

// One selection in every view: whatever belongs to a layer carries its number, whatever to a node its name.
let selected = {};
function choose(next = {}) {
  selected = next;
  const node = nodes[next.node], layer = next.layer ?? node?.layers[0];
  const inside = new Set(node ? [node.name] : layers[layer]?.nodes);
  for (const element of all(".chosen")) element.classList.remove("chosen");
  if (layer !== undefined) for (const element of all(`[data-layer="${layer}"]`)) element.classList.add("chosen");
  for (const element of all("#network [data-node]")) if (inside.has(element.dataset.node)) element.classList.add("chosen");
  reveal();
  describe(node, node ? undefined : layers[layer]);
  if (layers.length) remember();
}
function reveal() {
  for (const view of all(".scroll, .pane")) {
    const element = view.querySelector(".chosen");
    if (!element || !view.offsetParent) continue;
    const inner = element.getBoundingClientRect(), outer = view.getBoundingClientRect();
    if (inner.top < outer.top || inner.bottom > outer.bottom) view.scrollTop += inner.top - outer.top - outer.height / 3;
    if (inner.left < outer.left || inner.left > outer.right) view.scrollLeft += inner.left - outer.left - outer.width / 3;
  }
}

// A permalink: the view, and the selection by its name in the model.
const named = ({ layer, node }) => node !== undefined ? `node=${encodeURIComponent(nodes[node].name)}`
  : layer !== undefined ? `layer=${encodeURIComponent(layers[layer].name)}` : "";
function remember() {
  const hash = `#${[shown(), named(selected)].filter(Boolean).join("&")}`;
  if (hash !== location.hash) history.replaceState(null, "", hash);
}
const plain = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
function follow() {
  const parts = location.hash.slice(1).split("&").map((each) => each.split("="));
  const asked = Object.fromEntries(parts.filter((each) => each.length > 1).map(([key, name]) => [key, plain(name)]));
  const view = parts.find((each) => each.length < 2 && each[0]);
  if (view) show(view[0]);
  const layer = layers.findIndex((each) => each.name === asked.layer);
  const node = nodes.findIndex((each) => each.name === asked.node || (asked.tensor !== undefined && Object.hasOwn(each.tensors, asked.tensor)));
  if (node >= 0) choose({ node });
  else if (layer >= 0) choose({ layer });
  if (!told) document.querySelector("tr.chosen")?.scrollIntoView({ block: "center" });
}

// What the selection is: facts as text, names as links to other selections.
function make(parent, tag, text = "", attributes = {}) {
  const found = parent.appendChild(document.createElement(tag));
  found.textContent = text;
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  return found;
}
function facts(parent, layer, at) {
  const list = make(parent, "ul");
  for (const each of layer.facts) make(list, "li", each);
  for (const each of layer.held) make(list, "li", each, { class: "note" });
  const values = document.querySelector(`#values [data-layer="${at}"]`);
  if (values) {
    const copy = parent.appendChild(values.cloneNode(true));
    copy.removeAttribute("data-layer");
    copy.removeAttribute("class");
  }
  if (document.querySelector(`#instructions [data-layer="${at}"]`)) make(parent, "a", "its instructions", { href: `#instructions&${named({ layer: at })}` });
}
function describe(node, layer) {
  if (!told) return;
  told.replaceChildren();
  document.body.classList.toggle("open", Boolean(node ?? layer));
  if (node) {
    make(told, "small", `node of the model, ${node.op}`);
    make(told, "h3", node.name);
    for (const each of node.told) make(told, "div", each, { class: "placed" });
    for (const at of node.layers) {
      const part = make(told, "details");
      part.open = true;
      make(make(part, "summary"), "a", `layer ${layers[at].name}`, { href: `#${named({ layer: at })}` });
      facts(part, layers[at], at);
    }
    for (const [name, now] of Object.entries(node.tensors)) make(told, "div", `tensor ${name}: ${now ? `now ${now}` : "not kept"}`, { class: "placed note" });
  } else if (layer) {
    make(told, "small", `layer, ${layer.op}`);
    make(told, "h3", layer.name);
    facts(told, layer, layers.indexOf(layer));
    if (layer.nodes.length) make(told, "h4", "Nodes of the model");
    for (const name of layer.nodes) make(make(told, "div", "", { class: "placed" }), "a", name, { href: `#node=${encodeURIComponent(name)}` });
  } else make(told, "p", "Click or tap anything to see what it is, and where it is in every view. The + of a node opens what it became. / searches, Escape lets go; the address is a link to the selection.", { class: "note" });
}
function explain(row) {
  told.replaceChildren();
  document.body.classList.add("open");
  const [, index, text, nodes] = row.textContent.match(/(\d+) (.*?)(?:  ; (.*))?$/);
  make(told, "small", `instruction ${index}`);
  make(told, "h3", text);
  for (const field of all("i", row)) make(told, "div", `${field.textContent.trim()}: ${field.title}`, { class: "placed" });
  make(told, "div", nodes ?? row.parentElement.previousElementSibling.textContent, { class: "placed note" });
}
const numberOf = new Map(nodes.map((each, at) => [each.name, at]));
function take(element) {
  const node = numberOf.get(element.dataset.node);
  if (node !== undefined) choose({ node });
  else choose({ layer: Number(element.dataset.layer) });
}
document.addEventListener("click", (event) => {
  if (event.target.closest("summary, a, button, input, #details")) return;
  if (event.target.matches(".fold")) return fold([event.target.parentElement]);
  const element = event.target.closest("[data-layer], #network [data-node]"), row = event.target.closest(".listing pre > span");
  if (element) element.classList.contains("chosen") ? choose() : take(element);
  if (row && told) explain(row);
});
document.getElementById("close")?.addEventListener("click", () => choose());
document.addEventListener("keydown", (event) => {
  const focus = document.activeElement;
  if (event.key === "Escape") choose();
  if (event.key === "/" && finder && focus !== finder) finder.focus(), event.preventDefault();
  if (event.key === "Enter" && (focus.dataset.layer || numberOf.has(focus.dataset.node))) take(focus);
  if (event.key === "Enter" && focus.tagName === "TH") focus.click();
  if (event.key === " " && focus.matches("#network [data-node]")) fold([focus]), event.preventDefault();
});

// Search: layers, nodes and tensors by a part of their names, the closest first.
const finder = document.getElementById("search"), list = document.getElementById("found"), MOST_FOUND = 12;
const named_things = [
  ...layers.map((each, layer) => ({ kind: "layer", name: each.name, to: { layer } })),
  ...nodes.map((each, node) => ({ kind: each.op, name: each.name, to: { node } })),
  ...nodes.flatMap((each, node) => Object.keys(each.tensors).map((name) => ({ kind: "tensor", name, to: { node } }))),
];
function search() {
  const asked = finder.value.toLowerCase();
  const rank = ({ name }) => { const at = name.toLowerCase().lastIndexOf(asked); return (name.length === asked.length ? 0 : at + asked.length === name.length ? 1 : 2); };
  const hits = asked ? named_things.filter((each) => `${each.name} ${each.kind}`.toLowerCase().includes(asked)) : [];
  hits.sort((a, b) => rank(a) - rank(b) || a.name.length - b.name.length);
  list.replaceChildren();
  for (const each of hits.slice(0, MOST_FOUND)) {
    const button = make(list, "button", each.name, { type: "button" });
    make(button, "small", ` ${each.kind}`);
    button.addEventListener("click", () => { finder.value = ""; search(); finder.blur(); choose(each.to); });
  }
  if (hits.length > MOST_FOUND) make(list, "small", `${hits.length - MOST_FOUND} more`);
  if (asked && !hits.length) make(list, "small", "nothing of that name");
  list.hidden = !asked;
}
finder?.addEventListener("input", search);
finder?.addEventListener("keydown", (event) => {
  if (event.key === "Enter") list.querySelector("button")?.click();
  if (event.key === "ArrowDown") list.querySelector("button")?.focus(), event.preventDefault();
  if (event.key === "Escape") finder.value = "", search(), finder.blur(), event.stopPropagation();
});
list?.addEventListener("keydown", (event) => {
  const beside = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (beside) (document.activeElement[beside] ?? finder).focus(), event.preventDefault();
});

// A node of the network opens to what it became; the rows below move down.
const drawing = document.querySelector("#network svg"), opened = new Map(), BOX = 34, LINE = 12;
const places = drawing ? all(".box", drawing).map((box) => ({ box, x: box.querySelector("rect").x.baseVal.value, y: box.querySelector("rect").y.baseVal.value })) : [];
const bases = drawing ? all("rect, text, path", drawing).map((element) => ({ element, y: Number(element.getAttribute("y")), height: Number(element.getAttribute("height")), d: element.getAttribute("d") })) : [];
const whole = drawing?.viewBox.baseVal.height;
function became(box) {
  return nodes[numberOf.get(box.dataset.node)].layers.flatMap((at) => [layers[at].op, ...layers[at].facts.slice(0, 2)].map((text) => ({ at, text })));
}
function fold(boxes, wanted) {
  for (const box of boxes) {
    if (!box.querySelector(".fold") || opened.has(box) === wanted) continue;
    const extra = opened.has(box) ? 0 : LINE * became(box).length + 6;
    extra ? opened.set(box, extra) : opened.delete(box);
    box.querySelector(".fold").textContent = extra ? "\u2212" : "+";
    for (const line of all(".became", box)) line.remove();
  }
  const rows = new Map();
  for (const { box, y } of places) rows.set(y, Math.max(rows.get(y) ?? 0, opened.get(box) ?? 0));
  const moved = (y) => y + [...rows].reduce((sum, [row, extra]) => sum + (row + BOX <= y + 0.1 ? extra : 0), 0);
  for (const { element, y, height, d } of bases) {
    if (d) {
      element.setAttribute("d", d.replace(/([MCV])([^MCV]*)/g, (_, command, text) => {
        const numbers = text.trim().split(/\s+/).map(Number);
        if (command === "V") return ` V${moved(numbers[0])}`;
        const shifted = numbers.map((value, at) => (at % 2 ? moved(value) : value));
        if (command === "C") return ` C${shifted.join(" ")}`;
        const from = places.find((each) => Math.abs(each.y + BOX - numbers[1]) < 1 && Math.abs(each.x + 75 - numbers[0]) < 1);
        return `M${numbers[0]} ${from ? moved(from.y) + BOX + (opened.get(from.box) ?? 0) : shifted[1]} V${shifted[1]}`;
      }));
      continue;
    }
    element.setAttribute("y", moved(y));
    const own = opened.get(element.parentElement) ?? 0;
    if (element.tagName === "rect") element.setAttribute("height", element.matches(".region") ? moved(y + height) - moved(y) : height + own);
  }
  for (const [box] of opened) {
    if (box.querySelector(".became")) continue;
    const { x } = places.find((each) => each.box === box), top = Number(box.querySelector("rect").getAttribute("y")) + BOX;
    for (const [at, line] of became(box).entries()) {
      const label = box.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "text"));
      label.textContent = line.text.length > 25 ? `${line.text.slice(0, 24)}\u2026` : line.text;
      for (const [key, value] of [["class", "note became"], ["x", x + 6], ["y", top + LINE * (at + 1) - 2]]) label.setAttribute(key, value);
    }
  }
  for (const [box] of opened) {
    const top = Number(box.querySelector("rect").getAttribute("y")) + BOX;
    for (const [at, label] of all(".became", box).entries()) label.setAttribute("y", top + LINE * (at + 1) - 2);
  }
  const box = drawing.viewBox.baseVal, scale = drawing.width.baseVal.value / box.width;
  box.height = moved(whole);
  drawing.setAttribute("height", box.height * scale);
}
for (const button of all("[data-fold]")) button.addEventListener("click", () => fold(places.map((each) => each.box), button.dataset.fold === "1"));

// The panes' borders.
for (const split of all("[data-split]")) {
  split.addEventListener("pointerdown", (event) => { split.setPointerCapture(event.pointerId); event.preventDefault(); });
  split.addEventListener("pointermove", (event) => {
    if (!split.hasPointerCapture(event.pointerId)) return;
    const size = split.dataset.split === "side" ? innerWidth - event.clientX : innerHeight - event.clientY;
    document.body.style.setProperty(`--${split.dataset.split}`, `${Math.max(size, 60)}px`);
  });
}

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

addEventListener("hashchange", follow);
if (told) {
  for (const each of all("nav a")) each.addEventListener("click", (event) => { event.preventDefault(); show(each.hash.slice(1)); remember(); reveal(); });
  show("summary");
  describe();
}
follow();
