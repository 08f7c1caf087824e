"use strict";

// Tables: every column heading becomes a button that sorts its table; missing values stay last.
const said = document.querySelector(".status-sort");

function sortTable(table, place) {
  const heads = [...table.tHead.rows[0].cells];
  const head = heads[place];
  const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = direction === "ascending" ? 1 : -1;
  const key = (row) => {
    const cell = row.cells[place];
    const text = cell.textContent.trim();
    return { missing: text === "–", number: cell.dataset.value === undefined ? NaN : Number(cell.dataset.value), text };
  };
  const keyed = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  keyed.sort(([a], [b]) => {
    if (a.missing || b.missing) return a.missing - b.missing;
    const both = !Number.isNaN(a.number) && !Number.isNaN(b.number);
    return sign * (both ? a.number - b.number : a.text.localeCompare(b.text, undefined, { numeric: true }));
  });
  table.tBodies[0].append(...keyed.map(([, row]) => row));
  heads.forEach((other) => other.setAttribute("aria-sort", other === head ? direction : "none"));
  said.textContent = `${table.caption.textContent}: sorted by ${head.textContent}, ${direction}`;
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sortTable(table, place));
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
  });
}

// Images: step through images (left, right) and methods (up, down) by buttons or keys.
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// An image in full size, or twice or four times that.
function enlarge(source, alt) {
  const image = make("img", { src: source, alt });
  const choice = make("select", { "aria-label": "zoom" });
  for (const times of [1, 2, 4]) choice.append(make("option", { value: times }, `${times} ×`));
  const small = () => Math.max(1, Math.floor(480 / Math.max(image.naturalWidth, image.naturalHeight)));
  const resize = () => { image.style.width = `${image.naturalWidth * small() * choice.value}px`; };
  const close = make("button", { type: "button" }, "Close");
  const box = make("dialog", { class: "enlarged", "aria-label": alt }, make("div", {}, choice, close), make("div", { class: "whole" }, image));
  choice.addEventListener("change", resize);
  image.addEventListener("load", resize);
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

function startViewer(viewer) {
  const data = JSON.parse(viewer.querySelector("script").textContent);
  const status = viewer.querySelector(".status");
  const panels = make("div", { class: "panels" });
  const at = { image: 0, method: 0 };
  const sizes = { image: data.shown[0].length, method: data.methods.length };
  const counters = {};

  function show() {
    const entry = data.shown[at.method][at.image];
    const image = `image ${at.image + 1}${entry.name ? ` (${entry.name})` : ""}`;
    for (const what of ["image", "method"]) counters[what].textContent = `${what} ${at[what] + 1} of ${sizes[what]}`;
    const text = [image.replace("i", "I"), data.methods[at.method], entry.text].filter(Boolean).join(": ");
    status.textContent = text;
    panels.replaceChildren(
      ...Object.entries(entry.panels).map(([name, number]) => {
        const about = name === "prediction" && entry.text ? `, ${entry.text}` : "";
        const whose = name === "input" || name === "truth" ? "" : ` by ${data.methods[at.method]}`;
        const alt = `${name} of ${image}${whose}${about}`;
        const open = make("button", { type: "button", class: "enlarge", "aria-label": `enlarge ${alt}` });
        const panel = make("img", { src: data.sources[number], alt });
        panel.addEventListener("load", () => panel.classList.toggle("smooth", panel.naturalWidth > 2 * panel.clientWidth));
        open.append(panel);
        open.addEventListener("click", () => enlarge(data.sources[number], alt));
        return make("figure", {}, open, make("figcaption", {}, name));
      }),
    );
  }

  function step(what, by) {
    at[what] = (at[what] + by + sizes[what]) % sizes[what];
    show();
  }

  function stepper(what) {
    counters[what] = make("span", {});
    const button = (text, label, by) => {
      const element = make("button", { type: "button", "aria-label": label, "data-step": `${what}${by}` }, text);
      element.addEventListener("click", () => step(what, by));
      return element;
    };
    const arrows = what === "image" ? ["←", "→"] : ["↑", "↓"];
    return make(
      "div", { class: "stepper" },
      button(arrows[0], `previous ${what}`, -1), counters[what], button(arrows[1], `next ${what}`, 1),
    );
  }

  viewer.setAttribute("role", "group");
  viewer.setAttribute("aria-label", viewer.dataset.label);
  viewer.tabIndex = 0;
  viewer.prepend(make("div", { class: "controls" }, stepper("image"), stepper("method")));
  const keys = "With the focus here, the arrow keys step: left and right through images, up and down through methods.";
  viewer.append(panels, make("p", { class: "keys" }, keys));
  viewer.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: ["image", -1], ArrowRight: ["image", 1], ArrowUp: ["method", -1], ArrowDown: ["method", 1] };
    if (event.key in moves && !event.altKey && !event.ctrlKey && !event.metaKey) {
      step(...moves[event.key]);
      event.preventDefault();
    }
  });
  show();
}

document.querySelectorAll(".viewer").forEach(startViewer);
