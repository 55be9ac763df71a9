// Follows /api/events and shows what it says. Text from the job only ever becomes text, never markup.
"use strict";

const kMostUpdates = 200; // As the server keeps them.
const kFirstRows = 100; // Of a long list, until "Show all".
// What the controller waited for until it sent that message.
const kSteps = {
  start: ["grant", "waiting for engines"],
  release: ["write", "writing"],
  commit: ["commit", "deciding"],
  serve: ["switch", "switching"],
  done: ["serve", "until served"],
};
const kStateColours = { SERVING: "good", FAILED: "bad", LOST: "bad", UPDATING: "busy", READY: "busy", COMMITTED: "busy" };

const at = (id) => document.getElementById(id);
const updates = new Map(); // By number, in order.
const whole = new Set(); // Lists that are shown to their ends.
let state = null;
let feed = ""; // Which controller counts the updates.
let source = null;
let drawing = false;

// ---- small tools

/** An element with classes, text or children, and attributes. */
function make(tag, classes = "", content = null, attributes = {}) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (Array.isArray(content)) element.append(...content);
  else if (content !== null) element.textContent = content;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** One child of `parent` for each item, kept by key so that focus and open details stay. */
function keep(parent, items, key, create, fill) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = known.get(name);
    known.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    fill(child, item);
  }
  for (const gone of known.values()) gone.remove();
}

const part = (element, name) => element.querySelector(`[data-part="${name}"]`);
const piece = (tag, classes, name) => make(tag, classes, null, { "data-part": name });

/** The newest digits that matter: 0.0123, 1.23, 123. */
const short = (value) => (value === 0 ? "0" : value >= 100 ? value.toFixed(0) : value.toPrecision(3));
function seconds(value) {
  if (value < 0.0009995) return `${short(value * 1e6)} µs`;
  return value < 0.9995 ? `${short(value * 1000)} ms` : `${short(value)} s`;
}
function bytes(value) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (value >= size) return `${short(value / size)} ${unit}`;
  return `${value} B`;
}
const rateOf = (moved) => (moved && moved.seconds > 0 ? moved.bytes / moved.seconds : 0);
const version = (one) => (one ? one.text : "none");
const label = (one) => (one && one.label ? one.label : "");
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function badge(element, text) {
  setText(element, text);
  element.className = `badge ${kStateColours[text] || ""}`.trim();
}

// ---- parts of a model

function newCard() {
  const top = make("div", "top", [piece("span", "name", "name"), piece("span", "badge", "state")]);
  return make("li", "card", [top, piece("p", "version number", "version"), piece("p", "quiet", "where"),
    piece("p", "error", "error")]);
}

function fillCard(card, { name, state, shown, where, error }) {
  setText(part(card, "name"), name);
  part(card, "name").title = name;
  badge(part(card, "state"), state);
  setText(part(card, "version"), shown);
  setText(part(card, "where"), where);
  setText(part(card, "error"), error);
  part(card, "error").hidden = !error;
}

function hostsOf(workers) {
  const hosts = [...new Set(workers.map((one) => one.host).filter(Boolean))];
  return hosts.length > 2 ? plural(hosts.length, "host") : hosts.join(", ");
}

function engineCard(engine, ranks) {
  const mine = ranks.filter((one) => one.engine === engine.name);
  const lost = mine.filter((one) => !one.alive).length;
  const words = [`${plural(engine.ranks, "rank")}`, hostsOf(mine), engine.control, label(engine.version)];
  if (lost) words.splice(1, 0, `${lost} lost`);
  return { name: engine.name, state: engine.state, shown: version(engine.version),
    where: words.filter(Boolean).join(" · "), error: engine.last_error };
}

function trainerCard(trainer) {
  const state = !trainer.alive ? "LOST" : trainer.prepared ? "prepared" : "joined";
  return { name: trainer.name, state, shown: version(trainer.version),
    where: [trainer.host, label(trainer.version)].filter(Boolean).join(" · "), error: "" };
}

/** The first of a long list, and a button for the rest. */
function cut(items, name, button) {
  const all = whole.has(name) || items.length <= kFirstRows;
  button.hidden = all;
  setText(button, `Show all ${items.length}`);
  return all ? items : items.slice(0, kFirstRows);
}

function newConnection() {
  const meter = make("span", "meter", [make("i")], { "aria-hidden": "true" });
  const rate = make("div", "rate", [meter, piece("span", "number", "rate")]);
  return make("tr", "", [piece("td", "", "ends"), make("td", "right", [rate]), piece("td", "wide", "path")]);
}

function fillConnection(row, one, most) {
  const rate = rateOf(one.last);
  setText(part(row, "ends"), `${one.from} → ${one.to}`);
  setText(part(row, "path"), one.path);
  setText(part(row, "rate"), one.last ? `${bytes(rate)}/s` : "not yet");
  row.querySelector(".meter i").style.setProperty("--share", most > 0 ? `${(100 * rate) / most}%` : "0%");
}

// ---- updates

/** The steps in their order in time. Where each engine switches by itself, one commits while others are written. */
function stepsOf(update) {
  let before = 0;
  let released = false;
  const steps = [];
  for (const one of update.moments) {
    if (!kSteps[one.name]) continue;
    released = released || one.name === "release";
    const [name, words] = kSteps[one.name === "commit" && !released ? "release" : one.name];
    const took = Math.max(0, one.seconds - before);
    before = Math.max(before, one.seconds);
    const last = steps[steps.length - 1];
    if (last && last.name === name) last.took += took;
    else steps.push({ index: steps.length, name, words, took });
  }
  return steps;
}
const lengthOf = (update) => Math.max(update.seconds, ...update.moments.map((one) => one.seconds));

function newUpdate() {
  const summary = make("summary", "", [piece("span", "what", "what"), piece("span", "bar", "bar"),
    piece("span", "how number quiet", "how"), piece("span", "verdict", "verdict"), piece("span", "verdict error", "reason")]);
  part(summary, "bar").setAttribute("role", "img");
  const head = make("tr", "", [make("th", "", "Slowest routes"), make("th", "right", "Bytes"), make("th", "right", "Time"),
    make("th", "right", "Rate")]);
  const table = make("table", "stack", [make("thead", "", [head]), piece("tbody", "", "routes")]);
  const more = make("div", "more", [piece("p", "", "remedy"), piece("p", "quiet", "steps"), piece("p", "quiet", "engines"), table]);
  return make("li", "", [make("details", "", [summary, more])]);
}

function fillUpdate(item, update, longest) {
  const steps = stepsOf(update);
  const words = steps.map((one) => `${one.words} ${seconds(one.took)}`).join(", ");
  const when = new Date(update.ended).toLocaleTimeString([], { hour12: false });
  setText(part(item, "what"), `version ${version(update.version)}`);
  part(item, "what").title = label(update.version);
  setText(part(item, "how"), `${seconds(update.seconds)} · ${bytes(update.bytes)} · ${when}`);
  part(item, "bar").setAttribute("aria-label", words || "no steps");
  keep(part(item, "bar"), steps, (one) => one.index, (one) => make("i", one.name),
    (segment, one) => segment.style.setProperty("--share", `${(100 * one.took) / longest}%`));
  const verdict = update.verdict ? update.verdict.text : "";
  for (const [name, text] of [["verdict", verdict], ["reason", update.committed ? "" : `not committed: ${update.reason}`]]) {
    setText(part(item, name), text);
    part(item, name).hidden = !text;
  }
  const remedy = update.verdict ? update.verdict.remedy : "";
  setText(part(item, "remedy"), remedy);
  part(item, "remedy").hidden = !remedy;
  part(item, "verdict").classList.toggle("slow", Boolean(update.verdict && update.verdict.slow));
  setText(part(item, "steps"), `${words}; ended ${new Date(update.ended).toLocaleString([], { hour12: false })}`);
  setText(part(item, "engines"), update.engines.map((one) =>
    one.committed ? `${one.name} committed` : `${one.name}: ${one.reason || "not committed"}`).join(" · "));
  fillRoutes(part(item, "routes"), update.routes);
}

function fillRoutes(body, routes) {
  const create = () => make("tr", "", [piece("td", "wide", "ends"), piece("td", "right number", "bytes"),
    piece("td", "right number", "time"), piece("td", "right number", "rate")]);
  keep(body, routes, (one) => `${one.from}>${one.to}`, create, (row, one) => {
    setText(part(row, "ends"), `${one.from} → ${one.to}`);
    setText(part(row, "bytes"), bytes(one.bytes));
    setText(part(row, "time"), seconds(one.seconds));
    setText(part(row, "rate"), `${bytes(rateOf(one))}/s`);
  });
}

// ---- the whole

function newModel(model) {
  const name = (text) => `${model.model}-${text}`;
  const showAll = (what) => {
    const button = piece("button", "", `all-${what}`);
    button.type = "button";
    button.addEventListener("click", () => {
      whole.add(name(what));
      draw();
    });
    return button;
  };
  const head = make("header", "", [piece("h2", "", "name"), piece("span", "badge", "phase"), piece("span", "quiet", "plan"),
    piece("span", "error", "error")]);
  const columns = make("tr", "", [make("th", "", "Connection"), make("th", "right", "Last update"), make("th", "", "Path")]);
  const table = make("table", "stack", [make("thead", "", [columns]), piece("tbody", "", "connections")]);
  const legend = make("p", "legend quiet", Object.values(kSteps).map(([step, words]) => make("span", step, words)));
  const panel = (content) => make("div", "panel", content);
  const box = make("section", "model", [head,
    piece("h3", "", "engines-title"), piece("ul", "cards", "engines"), showAll("engines"),
    piece("h3", "", "trainers-title"), piece("ul", "cards", "trainers"), showAll("trainers"),
    make("h3", "", "Last updates"), panel([legend, piece("ol", "updates", "updates"), piece("p", "quiet", "no-updates")]),
    showAll("updates"), piece("h3", "", "connections-title"), panel([table]), showAll("connections")]);
  return box;
}

function fillModel(box, model) {
  const list = (what) => cut(model[what], `${model.model}-${what}`, part(box, `all-${what}`));
  setText(part(box, "name"), `${model.model} · version ${version(model.version)}`);
  setText(part(box, "phase"), model.phase);
  setText(part(box, "plan"), `plan ${model.epoch}${label(model.version) ? ` · ${label(model.version)}` : ""}`);
  setText(part(box, "error"), model.last_error ? `last error: ${model.last_error}` : "");
  for (const [what, word] of [["engines", "Engines"], ["trainers", "Trainers"], ["connections", "Connections"]])
    setText(part(box, `${what}-title`), `${word} (${model[what].length})`);
  const byName = (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true });
  model.engines.sort(byName);
  model.trainers.sort(byName);
  keep(part(box, "engines"), list("engines"), (one) => one.name, newCard,
    (card, one) => fillCard(card, engineCard(one, model.ranks)));
  keep(part(box, "trainers"), list("trainers"), (one) => one.name, newCard,
    (card, one) => fillCard(card, trainerCard(one)));
  const most = Math.max(0, ...model.connections.map((one) => rateOf(one.last)));
  keep(part(box, "connections"), list("connections"), (one) => `${one.from}>${one.to}`, newConnection,
    (row, one) => fillConnection(row, one, most));
  fillUpdates(box, model);
}

function fillUpdates(box, model) {
  const all = [...updates.values()].filter((one) => one.model === model.model).reverse();
  const few = whole.has(`${model.model}-updates`) ? all : all.slice(0, 12);
  const button = part(box, "all-updates");
  button.hidden = few.length === all.length;
  setText(button, `Show all ${all.length}`);
  const longest = Math.max(1e-9, ...few.map(lengthOf));
  keep(part(box, "updates"), few, (one) => one.number, newUpdate, (item, one) => fillUpdate(item, one, longest));
  setText(part(box, "no-updates"), all.length ? "" : "No update has ended yet.");
}

function draw() {
  drawing = false;
  if (!state) return;
  setText(at("job"), `job ${state.job} · term ${state.term}`);
  at("empty").hidden = state.models.length > 0;
  keep(at("models"), state.models, (one) => one.model, newModel, fillModel);
  const first = state.models[0];
  document.title = first ? `${first.model} ${version(first.version)} · weightcast` : "weightcast";
}

/** Many events at once are drawn once; a hidden tab draws when it is seen again. */
function drawSoon() {
  if (drawing) return;
  drawing = true;
  if (document.hidden) document.addEventListener("visibilitychange", draw, { once: true });
  else requestAnimationFrame(draw);
}

// ---- events and token

const token = () => sessionStorage.getItem("token") || "";

function showLink(text, colour) {
  setText(at("link"), text);
  at("link").className = `badge ${colour}`;
}

function onUpdate(event) {
  const update = JSON.parse(event.data);
  const from = event.lastEventId.split(".")[0];
  if (feed !== from) updates.clear(); // Another controller counts its updates from 1.
  feed = from;
  updates.set(update.number, update);
  while (updates.size > kMostUpdates) updates.delete(updates.keys().next().value);
  drawSoon();
}

function onState(event) {
  state = JSON.parse(event.data);
  drawSoon();
}

function follow() {
  if (source) source.close();
  source = new EventSource(token() ? `api/events?token=${encodeURIComponent(token())}` : "api/events");
  source.addEventListener("open", () => showLink("live", "good"));
  source.addEventListener("update", onUpdate);
  source.addEventListener("state", onState);
  source.addEventListener("error", () => {
    showLink("reconnecting", "bad");
    // The browser gives up where the answer is no stream: after a refusal, or while a proxy says 502.
    if (source.readyState === EventSource.CLOSED) setTimeout(begin, 2000);
  });
}

async function begin() {
  let answer = null;
  try {
    answer = await fetch("api/state", { headers: token() ? { Authorization: `Bearer ${token()}` } : {} });
  } catch {
    showLink("no controller", "bad");
    setTimeout(begin, 2000);
    return;
  }
  at("ask").hidden = answer.status !== 401;
  if (answer.status === 401) {
    showLink("token needed", "busy");
    setText(at("refused"), token() ? "This token was refused." : "");
    sessionStorage.removeItem("token");
    at("token").focus();
    return;
  }
  if (answer.ok) for (const link of document.querySelectorAll("footer a")) link.search = token() ? `?token=${encodeURIComponent(token())}` : "";
  follow();
}

/** The address bar, history and screenshots are no place for a token. */
function takeToken() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (!given) return;
  sessionStorage.setItem("token", given);
  address.searchParams.delete("token");
  history.replaceState(null, "", address);
}

// ---- theme and keys

function showTheme() {
  const theme = localStorage.getItem("theme") || "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  setText(at("theme"), `Theme: ${theme}`);
}

function nextTheme() {
  const themes = ["auto", "light", "dark"];
  const now = themes.indexOf(localStorage.getItem("theme") || "auto");
  localStorage.setItem("theme", themes[(now + 1) % themes.length]);
  showTheme();
}

function step(by) {
  const all = [...document.querySelectorAll("summary")];
  const next = all[Math.min(all.length - 1, Math.max(0, all.indexOf(document.activeElement) + by))];
  if (next) next.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "t") nextTheme();
  if (event.key === "j") step(1);
  if (event.key === "k") step(-1);
});
at("theme").addEventListener("click", nextTheme);
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value.trim());
  at("token").value = "";
  begin();
});
takeToken();
showTheme();
begin();
