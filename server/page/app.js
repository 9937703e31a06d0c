/* The page of h3av serve: plain calls to the same API that other clients use. State lives in the
   server; a card is redrawn from the newest object of its video. */
"use strict";

const $ = (id) => document.getElementById(id);
const cards = new Map(); // id -> {li, video, stream, media: [object URLs]}
const picked = { first: [], last: [], refs: [] };
let key = sessionStorage.getItem("h3av-key") || "";
let last = null; // oldest video on the page

// ------------------------------------------------------------------------------------- requests

async function call(method, path, body, raw) {
  const headers = key ? { Authorization: "Bearer " + key } : {};
  if (body && !(body instanceof FormData)) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(body);
  }
  const answer = await fetch(path, { method, headers, body });
  if (!answer.ok) {
    let text = answer.status + " " + answer.statusText;
    try { text = (await answer.json()).error.message; } catch { /* not one of ours */ }
    if (answer.status === 401) { text = "This server wants a key."; $("key-box").open = true; $("key").focus(); }
    const after = answer.headers.get("Retry-After");
    const error = new Error(after ? text + " (again in " + after + " s)" : text);
    error.status = answer.status;
    throw error;
  }
  return raw ? answer : answer.json();
}

function problem(text) {
  $("problem").textContent = text || "";
  $("problem").hidden = !text;
}

function announce(text) {
  $("announce").textContent = text;
}

// ----------------------------------------------------------------------------------------- words

function seconds(x) {
  if (x === null || x === undefined) return "";
  if (x < 60) return x.toFixed(x < 10 ? 1 : 0) + " s";
  const m = Math.floor(x / 60);
  return m < 60 ? m + " min " + Math.round(x % 60) + " s" : Math.floor(m / 60) + " h " + (m % 60) + " min";
}

const phases = { load: "Loading", text: "Reading the prompt", encode: "Reading the inputs", sample: "Generating",
                 sound: "Decoding the sound", decode: "Decoding the picture", mux: "Writing the file" };

function facts(v) {
  const words = { queued: "waiting", in_progress: "in progress", completed: "done", failed: "failed", cancelled: "cancelled" };
  const out = [words[v.status] || v.status];
  if (v.status === "queued" && v.queue_position) out[0] += ", number " + v.queue_position + " in the queue";
  if (v.size) out.push(v.size.replace("x", " × "));
  if (v.seconds) out.push(v.seconds + " s");
  if (v.steps) out.push(v.steps + " steps");
  if (v.seed !== undefined) out.push("seed " + v.seed);
  if (v.inputs) out.push(v.inputs + (v.inputs === 1 ? " input" : " inputs"));
  if (v.remixed_from_video_id) out.push("a remix");
  if (v.inference_time_s) out.push("took " + seconds(v.inference_time_s));
  out.push(new Date(v.created_at * 1000).toLocaleString());
  return out.join(" · ");
}

function progressText(v) {
  const out = [phases[v.phase] || v.phase || ""];
  if (v.steps_in_phase) out.push("step " + v.step + " of " + v.steps_in_phase);
  if (v.step_seconds) out.push(seconds(v.step_seconds) + " a step");
  if (v.eta_seconds) out.push("about " + seconds(v.eta_seconds) + " left");
  if (v.cancel_requested) out.push("stopping");
  return out.join(" · ");
}

// ----------------------------------------------------------------------------------------- cards

function draw(id) {
  const c = cards.get(id), v = c.video, li = c.li, at = (s) => li.querySelector(s);
  const isOver = !["queued", "in_progress"].includes(v.status);
  li.dataset.status = v.status;
  at(".prompt").textContent = v.prompt;
  at(".facts").textContent = facts(v);
  at(".live").hidden = v.status !== "in_progress";
  at("progress").value = v.progress;
  at("progress").setAttribute("aria-label", "Progress of " + v.prompt.slice(0, 60));
  at(".phase").textContent = progressText(v);
  at(".error").hidden = !v.error;
  if (v.error) at(".error").textContent = v.error.message;
  const warnings = at(".warnings");
  warnings.hidden = !(v.warnings && v.warnings.length);
  warnings.replaceChildren(...(v.warnings || []).map((w) => Object.assign(document.createElement("li"), { textContent: w })));
  for (const b of li.querySelectorAll("[data-do]")) {
    const what = b.dataset.do;
    b.hidden = what === "cancel" ? isOver : ["play", "download"].includes(what) ? v.status !== "completed" : false;
    b.setAttribute("aria-label", b.textContent + ": " + v.prompt.slice(0, 60));
  }
  if (v.status === "completed" && !c.hasPoster) { c.hasPoster = true; poster(id); }
}

function blobUrl(c, blob) {
  const url = URL.createObjectURL(blob);
  c.media.push(url);
  return url;
}

async function poster(id) {
  const c = cards.get(id), box = c.li.querySelector(".result");
  try {
    const blob = await (await call("GET", "/v1/videos/" + id + "/content?variant=thumbnail", null, true)).blob();
    if (box.querySelector("video")) return;
    const button = document.createElement("button"), img = document.createElement("img");
    button.type = "button";
    button.className = "poster";
    button.setAttribute("aria-label", "Play: " + c.video.prompt.slice(0, 60));
    img.alt = "First frame";
    img.src = blobUrl(c, blob);
    button.append(img);
    button.addEventListener("click", () => play(id));
    box.replaceChildren(button);
    box.hidden = false;
  } catch { /* the file may be gone; the buttons say so when they are used */ }
}

async function play(id) {
  const c = cards.get(id), box = c.li.querySelector(".result");
  let video = box.querySelector("video");
  if (!video) {
    video = document.createElement("video");
    video.controls = true;
    video.loop = true;
    video.setAttribute("aria-label", c.video.prompt.slice(0, 200));
    if (key) { // an element cannot send a key: the file is fetched whole
      const answer = await call("GET", "/v1/videos/" + id + "/content", null, true);
      video.src = blobUrl(c, await answer.blob());
    } else {
      video.src = "/v1/videos/" + id + "/content";
    }
    box.replaceChildren(video);
    box.hidden = false;
  }
  video.focus();
  try { await video.play(); } catch { /* the browser wants a click on the player itself */ }
}

async function download(id) {
  const c = cards.get(id);
  const blob = await (await call("GET", "/v1/videos/" + id + "/content", null, true)).blob();
  const a = document.createElement("a");
  a.href = blobUrl(c, blob);
  a.download = id + ".mp4";
  document.body.append(a);
  a.click();
  a.remove();
}

function remove(id) {
  const c = cards.get(id);
  if (!c) return;
  c.media.forEach((u) => URL.revokeObjectURL(u));
  if (c.stream) c.stream.abort();
  const next = c.li.nextElementSibling || c.li.previousElementSibling;
  if (c.li.contains(document.activeElement)) ((next && next.querySelector("button:not([hidden])")) || $("prompt")).focus();
  c.li.remove();
  cards.delete(id);
}

/* Settings of a video back into the form. */
function again(v) {
  $("prompt").value = v.prompt;
  $("size").value = v.size || "";
  $("seconds").value = v.frames ? (v.frames / 24).toFixed(3) : "";
  $("steps").value = v.steps || "";
  $("seed").value = v.seed !== undefined ? v.seed : "";
  $("prompt").focus();
}

async function act(id, what) {
  const c = cards.get(id), form = c.li.querySelector("form.remix");
  if (what === "play") return play(id);
  if (what === "download") return download(id);
  if (what === "again") return again(c.video);
  if (what === "remix") {
    form.hidden = !form.hidden;
    if (!form.hidden) {
      const area = form.querySelector("textarea");
      area.value = c.video.prompt;
      area.focus();
      area.select();
    } else {
      c.li.querySelector(".buttons [data-do=remix]").focus();
    }
    return undefined;
  }
  if (what === "cancel") {
    c.video = await call("POST", "/v1/videos/" + id + "/cancel");
    announce("Cancelled");
    return draw(id);
  }
  if (what === "delete") {
    await call("DELETE", "/v1/videos/" + id);
    announce("Deleted");
    remove(id);
    return count();
  }
  return undefined;
}

function add(v, atTop) {
  if (cards.has(v.id)) {
    cards.get(v.id).video = v;
    draw(v.id);
    return;
  }
  const li = $("card").content.firstElementChild.cloneNode(true);
  const c = { li, video: v, stream: null, media: [], hasPoster: false };
  cards.set(v.id, c);
  li.id = v.id;
  li.addEventListener("click", async (e) => {
    const b = e.target.closest("[data-do]");
    if (!b || b.ariaDisabled === "true") return;
    b.ariaDisabled = "true"; // not `disabled`: that would take the keyboard's focus away
    try { await act(v.id, b.dataset.do); problem(""); } catch (x) { problem(x.message); announce(x.message); }
    b.ariaDisabled = null;
  });
  li.querySelector("form.remix").addEventListener("submit", async (e) => {
    e.preventDefault();
    try {
      const made = await call("POST", "/v1/videos/" + v.id + "/remix", { prompt: e.target.querySelector("textarea").value });
      e.target.hidden = true;
      problem("");
      begin(made);
    } catch (x) { problem(x.message); }
  });
  if (atTop) $("videos").prepend(li);
  else $("videos").append(li);
  draw(v.id);
  if (v.status === "in_progress") follow(v.id);
}

function begin(v) {
  add(v, true);
  announce("Started: " + v.prompt.slice(0, 80));
  count();
}

function count() {
  const all = [...cards.values()], n = (s) => all.filter((c) => c.video.status === s).length;
  const run = n("in_progress"), wait = n("queued");
  $("queue").textContent = run || wait ? run + " in progress, " + wait + " waiting" : all.length ? "" : "Nothing yet.";
  document.title = run || wait ? "(" + (run + wait) + ") h3av" : "h3av";
}

// ---------------------------------------------------------------------------------------- events

/* Reads the event stream of a video by fetch: an EventSource could not send the key. */
async function readEvents(id, signal, take) {
  const answer = await fetch("/v1/videos/" + id + "/events", { signal, headers: key ? { Authorization: "Bearer " + key } : {} });
  if (!answer.ok) {
    const e = new Error("events: " + answer.status);
    e.status = answer.status;
    throw e;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const block = text.slice(0, end), name = /^event: (.*)$/m.exec(block), data = /^data: (.*)$/m.exec(block);
      text = text.slice(end + 2);
      if (name && data) take(name[1], JSON.parse(data[1]));
    }
  }
}

function onEvent(id, name, data) {
  const c = cards.get(id);
  if (!c) return;
  if (name === "preview") {
    const img = c.li.querySelector(".preview");
    img.src = "data:image/png;base64," + data.png;
    img.alt = "Rough preview in false colours";
    img.hidden = false;
    return;
  }
  if (data.deleted) { remove(id); count(); return; }
  const was = c.video.status;
  c.video = name === "progress" ? { ...c.video, ...data } : data;
  draw(id);
  if (was !== c.video.status) {
    count();
    if (name === "done") announce((c.video.status === "completed" ? "Done: " : c.video.status + ": ") + c.video.prompt.slice(0, 80));
  }
}

/* A browser opens six connections to a server, and a stream holds one: only what is being generated
   is followed (two at most), the others are looked up together. */
const STREAMS = 2;
let streams = 0;

async function follow(id) {
  const c = cards.get(id);
  if (c.stream || streams >= STREAMS) return;
  c.stream = new AbortController();
  streams++;
  try {
    await readEvents(id, c.stream.signal, (name, data) => onEvent(id, name, data));
  } catch (x) {
    if (x.status === 404) { remove(id); count(); }
  }
  c.stream = null;
  streams--;
}

const isOpen = (c) => ["queued", "in_progress"].includes(c.video.status);

async function refresh() {
  const open = [...cards.entries()].filter(([, c]) => isOpen(c) && !c.stream);
  if (!open.length) return;
  const page = await call("GET", "/v1/videos?limit=100");
  const found = new Map(page.data.map((v) => [v.id, v]));
  for (const [id] of open) {
    let v = found.get(id);
    try { v = v || await call("GET", "/v1/videos/" + id); } catch (x) {
      if (x.status === 404) { remove(id); count(); }
      continue;
    }
    if (!cards.has(id)) continue;
    onEvent(id, ["queued", "in_progress"].includes(v.status) ? "status" : "done", v);
    if (v.status === "in_progress") follow(id);
  }
}

/* A server that restarts goes on with its videos, and so does the page. */
async function watch() {
  let pause = 500;
  for (;;) {
    await new Promise((r) => setTimeout(r, pause));
    try { await refresh(); pause = document.hidden ? 5000 : 1000; } catch { pause = Math.min(pause * 2, 8000); }
  }
}

// ---------------------------------------------------------------------------------------- the form

function showFiles(which) {
  const list = document.querySelector("#drop-" + which + " .files");
  list.replaceChildren(...picked[which].map((f, i) => {
    const li = document.createElement("li"), b = document.createElement("button");
    if (f.type.startsWith("image/")) {
      const img = document.createElement("img");
      img.alt = "";
      img.src = URL.createObjectURL(f);
      img.addEventListener("load", () => URL.revokeObjectURL(img.src));
      li.append(img);
    }
    li.append(Object.assign(document.createElement("span"), { textContent: f.name }));
    b.type = "button";
    b.textContent = "Remove";
    b.setAttribute("aria-label", "Remove " + f.name);
    b.addEventListener("click", () => { picked[which].splice(i, 1); showFiles(which); $(which).focus(); });
    li.append(b);
    return li;
  }));
}

function pick(which, files) {
  const list = [...files];
  if (!list.length) return;
  picked[which] = which === "refs" ? picked[which].concat(list) : [list[0]];
  showFiles(which);
  announce(list.map((f) => f.name).join(", ") + " added");
}

for (const which of Object.keys(picked)) {
  const box = $("drop-" + which), input = $(which);
  input.addEventListener("change", () => { pick(which, input.files); input.value = ""; });
  box.addEventListener("dragover", (e) => { e.preventDefault(); box.classList.add("over"); });
  box.addEventListener("dragleave", () => box.classList.remove("over"));
  box.addEventListener("drop", (e) => { e.preventDefault(); box.classList.remove("over"); pick(which, e.dataTransfer.files); });
}
for (const name of ["dragover", "drop"]) // a file dropped beside a box must not replace the page
  window.addEventListener(name, (e) => e.preventDefault());

$("prompt").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); $("make").requestSubmit(); }
});

$("make").addEventListener("submit", async (e) => {
  e.preventDefault();
  const form = new FormData();
  form.set("prompt", $("prompt").value);
  for (const name of ["size", "seconds", "steps", "seed"])
    if ($(name).value.trim()) form.set(name, $(name).value.trim());
  if (picked.first[0]) form.set("first_frame", picked.first[0]);
  if (picked.last[0]) form.set("last_frame", picked.last[0]);
  for (const f of picked.refs) form.append("input_references", f);
  if ($("start").ariaDisabled === "true") return;
  $("start").ariaDisabled = "true";
  problem("");
  try { begin(await call("POST", "/v1/videos", form)); } catch (x) { problem(x.message); }
  $("start").ariaDisabled = null;
});

$("key-form").addEventListener("submit", (e) => {
  e.preventDefault();
  key = $("key").value.trim();
  sessionStorage.setItem("h3av-key", key);
  $("key").value = "";
  $("key-box").open = false;
  load();
});

// ------------------------------------------------------------------------------------------ start

async function older() {
  const page = await call("GET", "/v1/videos?limit=20" + (last ? "&after=" + last : ""));
  for (const v of page.data) add(v, false);
  last = page.last_id || last;
  $("more").hidden = !page.has_more;
  count();
}

$("more").addEventListener("click", () => older().catch((x) => problem(x.message)));

async function load() {
  try {
    const models = await call("GET", "/v1/models"), m = models.data[0];
    $("server").textContent = m.id;
    $("size").placeholder = m.defaults.size;
    $("seconds").placeholder = m.defaults.seconds.toFixed(2);
    $("seconds").max = m.limits.seconds;
    $("steps").placeholder = m.defaults.steps;
    $("steps").max = m.limits.steps;
    problem("");
    last = null;
    await older();
  } catch (x) {
    $("server").textContent = x.status === 401 ? "a key is needed" : "not reachable";
    if (x.status !== 401) { problem(x.message); setTimeout(load, 3000); }
  }
}

load();
watch();
