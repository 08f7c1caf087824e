"use strict";

const at = (id) => document.getElementById(id);
const canvas = at("canvas");
const pen = canvas.getContext("2d");
const VOID = 255;
const seen = {
  images: [], classes: [], number: -1, width: 0, height: 0, version: -1, shown: -1, value: 0, erase: false,
  place: null, cursor: null, undone: 0, keys: false, base: null, overlay: null, unsure: null,
};
const strokes = document.createElement("canvas");
const ink = strokes.getContext("2d");
let stroke = null;
let sending = Promise.resolve();

// -- requests: one at a time in order, and again until the server has them ------------------------------------------

async function ask(path, body) {
  const answer = await fetch(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), keepalive: path === "stroke",
  });
  const content = await answer.json().catch(() => ({ error: `The server refused the request (${answer.status}).` }));
  if (content.error) throw Object.assign(new Error(content.error), { told: true });
  return content;
}

function say(text, wrong = false) {
  at("status").textContent = text;
  at("status").classList.toggle("wrong", wrong);
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function send(path, body) {
  sending = sending.then(async () => {
    for (;;) {
      try {
        const answer = await ask(path, body);
        if (body.image === seen.number && answer.version !== undefined) seen.version = answer.version;
        return answer;
      } catch (error) {
        say(error.told ? error.message : "Not saved: potentia annotate does not answer. Is it still running?", true);
        if (error.told) return null;
        await pause(1000);
      }
    }
  });
  return sending;
}

async function follow() {
  for (;;) {
    const number = seen.number;
    if (number < 0) { await pause(50); continue; }
    try {
      const found = await ask("result", { image: number, after: seen.shown });
      if (number !== seen.number) continue;
      if (found.elsewhere) {
        say("Another image was opened meanwhile, perhaps in another tab: reload the page.", true);
        await pause(1000);
      }
      if (found.version === undefined) continue;
      seen.shown = found.version;
      if (found.message) {
        seen.overlay = seen.unsure = seen.place = null;
        say(found.message);
      } else {
        [seen.overlay, seen.unsure] = await Promise.all([loaded(found.overlay), loaded(found.uncertainty)]);
        seen.place = found.place;
        const next = found.place ? " Draw next in the dashed circle, or accept." : " All labels are certain.";
        say(found.newest ? `Labels after ${found.seconds.toFixed(1)} s.${next}` : "Labels of newer strokes follow …");
      }
      at("accept").disabled = Boolean(found.message);
      paint();
    } catch (error) {
      if (number === seen.number) say(error.told ? error.message : "potentia annotate does not answer. Is it still running?", true);
      await pause(1000);
    }
  }
}

async function loaded(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

// -- what is shown -----------------------------------------------------------------------------------------------

function fit() {
  const room = canvas.parentElement.clientWidth || 300;
  const high = Math.max(240, window.innerHeight - (window.innerWidth < 768 ? 220 : 110));
  const scale = Math.min(room / seen.width, high / seen.height) * Number(at("zoom").value);
  canvas.style.width = `${Math.floor(seen.width * scale)}px`;
  canvas.style.height = `${Math.floor(seen.height * scale)}px`;
  const dense = Math.min(4096 / Math.max(seen.width, seen.height), scale * (window.devicePixelRatio || 1));
  canvas.width = Math.max(1, Math.round(seen.width * dense));
  canvas.height = Math.max(1, Math.round(seen.height * dense));
  paint();
}

function paint() {
  if (!seen.base) return;
  const scale = canvas.width / seen.width;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(seen.base, 0, 0);
  for (const [layer, box] of [[seen.overlay, "labels"], [seen.unsure, "unsure"], [strokes, "marks"]]) {
    if (layer && at(box).checked) pen.drawImage(layer, 0, 0);
  }
  const line = (draw) => {
    for (const [width, colour] of [[4, "#000000"], [2, "#ffffff"]]) {
      pen.lineWidth = (width * (window.devicePixelRatio || 1)) / scale;
      pen.strokeStyle = colour;
      pen.beginPath();
      draw();
      pen.stroke();
    }
  };
  if (seen.place) {
    const [x, y, r] = seen.place;
    pen.setLineDash([r / 2.5, r / 4]);
    line(() => pen.arc(x, y, r, 0, 2 * Math.PI));
    pen.setLineDash([]);
  }
  if (seen.keys && seen.cursor && document.activeElement === canvas) {
    const [x, y] = seen.cursor;
    const r = Math.max(radius(), 4 / scale);
    line(() => {
      pen.arc(x, y, r, 0, 2 * Math.PI);
      pen.moveTo(x - 2 * r, y); pen.lineTo(x - r, y); pen.moveTo(x + r, y); pen.lineTo(x + 2 * r, y);
    });
  }
}

function list(state) {
  Object.assign(seen, { images: state.images, classes: state.classes });
  at("out").textContent = `Strokes, masks and the model are in ${state.out}.`;
  const rows = state.classes.map((each, k) => {
    const row = document.createElement("label");
    const input = Object.assign(document.createElement("input"), { type: "radio", name: "class", value: each.value });
    input.checked = each.value === seen.value;
    input.addEventListener("change", () => choose(k));
    const swatch = document.createElement("i");
    swatch.style.background = each.colour;
    row.append(input, swatch, each.name);
    if (k < 9) row.append(Object.assign(document.createElement("kbd"), { textContent: k + 1 }));
    return row;
  });
  at("classes").replaceChildren(at("classes").firstElementChild, ...rows);
}

function count() {
  const done = seen.images.filter((image) => image.mask).length;
  const accepted = seen.images[seen.number].mask ? " ✓" : "";
  at("name").textContent = seen.images[seen.number].name;
  at("counter").textContent = `${seen.number + 1} of ${seen.images.length}${accepted}`;
  at("done").textContent = `${done} accepted`;
}

function choose(k) {
  if (!seen.classes[k]) return;
  seen.value = seen.classes[k].value;
  at("classes").querySelectorAll("input")[k].checked = true;
  erasing(false);
}

function erasing(on) {
  seen.erase = on;
  at("erase").setAttribute("aria-pressed", on);
}

const radius = () => Number(at("radius").value);

function resize(by) {
  at("radius").value = radius() + by;
  at("size").value = at("radius").value;
  paint();
}

// -- images ------------------------------------------------------------------------------------------------------

async function open(number) {
  await sending;
  try {
    seen.number = -1;
    const found = await ask("open", { image: number });
    const [base, drawn] = await Promise.all([loaded(`image/${number}?${Math.random()}`), loaded(`strokes/${number}?${Math.random()}`)]);
    Object.assign(seen, found, { base, shown: -1, place: null, overlay: null, unsure: null, number });
    seen.cursor = [Math.round(found.width / 2), Math.round(found.height / 2)];
    if (!seen.sized) {
      at("radius").value = Math.max(found.width, found.height) / 130;
      seen.sized = true;
      resize(0);
    }
    strokes.width = found.width;
    strokes.height = found.height;
    ink.drawImage(drawn, 0, 0);
    at("accept").disabled = true;
    say("Computing labels …");
    history.replaceState(null, "", `#${number + 1}`);
    count();
    fit();
  } catch (error) {
    seen.number = -1;
    say(error.told ? error.message : "potentia annotate does not answer. Is it still running?", true);
    at("name").textContent = seen.images[number].name;
  }
}

const turn = (by) => seen.number >= 0 && open((seen.number + by + seen.images.length) % seen.images.length);

async function accept() {
  if (at("accept").disabled || seen.number < 0) return;
  at("accept").disabled = true;
  const number = seen.number;
  const answer = await send("accept", { image: number });
  at("accept").disabled = false;
  if (!answer) return;
  seen.images[number].mask = true;
  if (answer.next === null || answer.next === undefined) {
    count();
    say("Saved. All images are accepted.");
  } else {
    open(answer.next);
  }
}

// -- strokes -----------------------------------------------------------------------------------------------------

function begin(point) {
  stroke = { id: crypto.randomUUID(), last: point, points: [], timer: setInterval(flush, 400), value: seen.erase ? VOID : seen.value, radius: radius() };
  extend(point);
}

function extend(point) {
  const colour = seen.classes.find((each) => each.value === stroke.value);
  ink.globalCompositeOperation = stroke.value === VOID ? "destination-out" : "source-over";
  ink.strokeStyle = colour ? colour.colour : "#000000";
  ink.lineWidth = 2 * stroke.radius;
  ink.lineCap = ink.lineJoin = "round";
  ink.beginPath();
  ink.moveTo(...stroke.last);
  ink.lineTo(...point);
  ink.stroke();
  // a part that is sent later begins where the one before ends
  if (!stroke.points.length) stroke.points.push(stroke.last);
  stroke.points.push(point);
  stroke.last = point;
  if (stroke.points.length > 2000) flush();
  paint();
}

function flush() {
  if (!stroke || !stroke.points.length) return;
  const points = stroke.points.map((point) => point.map((v) => Math.round(v * 100) / 100));
  stroke.points = [];
  send("stroke", { image: seen.number, stroke: stroke.id, value: stroke.value, radius: stroke.radius, points });
}

function end() {
  if (!stroke) return;
  clearInterval(stroke.timer);
  flush();
  stroke = null;
  say("Computing labels …");
}

async function undo() {
  end();
  const number = seen.number;
  if (number < 0 || !(await send("undo", { image: number })) || number !== seen.number) return;
  const drawn = await loaded(`strokes/${number}?${Math.random()}`);
  ink.globalCompositeOperation = "source-over";
  ink.clearRect(0, 0, strokes.width, strokes.height);
  ink.drawImage(drawn, 0, 0);
  seen.undone += 1;
  paint();
}

function place(event) {
  const box = canvas.getBoundingClientRect();
  return [((event.clientX - box.left) / box.width) * seen.width, ((event.clientY - box.top) / box.height) * seen.height];
}

let finger = null;
canvas.addEventListener("pointerdown", (event) => {
  if (event.button > 0 || seen.number < 0 || finger !== null || !event.isPrimary) return;
  finger = event.pointerId;
  seen.keys = false;
  canvas.setPointerCapture(finger);
  canvas.focus({ preventScroll: true });
  begin(place(event));
});
canvas.addEventListener("pointermove", (event) => {
  if (event.pointerId !== finger || !stroke) return;
  const all = event.getCoalescedEvents ? event.getCoalescedEvents() : [];
  for (const each of all.length ? all : [event]) extend(place(each));
});
for (const kind of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(kind, (event) => {
    if (event.pointerId !== finger) return;
    finger = null;
    end();
  });
}
window.addEventListener("pagehide", end);

canvas.addEventListener("keydown", (event) => {
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (!seen.cursor || event.ctrlKey || event.metaKey || event.altKey) return;
  seen.keys = true;
  if (event.key in moves) {
    const step = Math.max(1, Math.round(radius() / 2)) * (event.shiftKey ? 8 : 1);
    const size = [seen.width, seen.height];
    seen.cursor = seen.cursor.map((v, k) => Math.min(size[k] - 1, Math.max(0, v + step * moves[event.key][k])));
    if (stroke) extend(seen.cursor);
    paint();
  } else if (event.key === " ") {
    if (!event.repeat && !stroke) begin(seen.cursor);
  } else {
    return;
  }
  event.preventDefault();
});
canvas.addEventListener("keyup", (event) => event.key === " " && finger === null && end());
canvas.addEventListener("blur", () => { if (finger === null) end(); paint(); });
canvas.addEventListener("focus", paint);

const toggle = (id) => { at(id).checked = !at(id).checked; paint(); };
document.addEventListener("keydown", (event) => {
  if (["text", "select-one"].includes(event.target.type) || event.altKey) return;
  const key = event.key.toLowerCase();
  if (key === "z") undo();
  else if (event.ctrlKey || event.metaKey) return;
  else if (/^[1-9]$/.test(key)) choose(Number(key) - 1);
  else if (key === "e") erasing(!seen.erase);
  else if (key === "[") resize(-1);
  else if (key === "]") resize(1);
  else if (key === "l") toggle("labels");
  else if (key === "u") toggle("unsure");
  else if (key === "s") toggle("marks");
  else if (key === "g" && seen.place) { seen.cursor = seen.place.slice(0, 2); seen.keys = true; canvas.focus(); paint(); }
  else if (key === "enter" && event.target.tagName !== "BUTTON" && event.target.tagName !== "SUMMARY") accept();
  else if (key === "pageup") turn(-1);
  else if (key === "pagedown") turn(1);
  else return;
  event.preventDefault();
});

at("erase").addEventListener("click", () => erasing(!seen.erase));
at("undo").addEventListener("click", undo);
at("accept").addEventListener("click", accept);
at("previous").addEventListener("click", () => turn(-1));
at("following").addEventListener("click", () => turn(1));
at("radius").addEventListener("input", () => resize(0));
at("zoom").addEventListener("change", fit);
for (const id of ["labels", "unsure", "marks"]) at(id).addEventListener("change", paint);
at("more").addEventListener("submit", async (event) => {
  event.preventDefault();
  const state = await send("class", { name: at("new").value });
  if (!state) return;
  at("new").value = "";
  list(state);
  choose(state.classes.length - 1);
});
window.addEventListener("resize", () => seen.number >= 0 && fit());

(async () => {
  const state = await (await fetch("state")).json();
  seen.value = state.classes[0].value;
  list(state);
  const wanted = Number(location.hash.slice(1)) - 1;
  const fresh = state.images.findIndex((image) => !image.mask);
  follow();
  open(state.images[wanted] ? wanted : Math.max(0, fresh));
})();
