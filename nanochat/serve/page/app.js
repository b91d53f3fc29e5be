// The chat page: conversations live in this browser, answers are streamed from /v1/chat/completions.
import { markdown } from "./markdown.js";
import { setLanguage, text } from "./texts.js";

const $ = (id) => document.getElementById(id);
const KEY = "nanochat";
const DEFAULTS = { temperature: 0.6, topk: 50, max: 512, system: "", token: "", theme: "", lang: "" };

// -- what is kept ---------------------------------------------------------------------------------------------------------

function load() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY)) ?? {};
    return { settings: { ...DEFAULTS, ...kept.settings }, chats: Array.isArray(kept.chats) ? kept.chats : [], open: kept.open ?? null };
  } catch { return { settings: { ...DEFAULTS }, chats: [], open: null }; }
}

const kept = load();
const settings = kept.settings;
let facts = null;
let running = null;

function save() {
  // A full or forbidden store must not stop the conversation; the oldest conversations make room first.
  for (let tries = 0; tries < 5; tries += 1) {
    try { localStorage.setItem(KEY, JSON.stringify(kept)); return; } catch { if (kept.chats.length < 2) return; kept.chats.pop(); }
  }
}

function current() { return kept.chats.find((chat) => chat.id === kept.open) ?? null; }

function ensureChat() {
  if (!current()) {
    const chat = { id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), title: "", turns: [] };
    kept.chats.unshift(chat);
    kept.open = chat.id;
  }
  return current();
}

// -- drawing --------------------------------------------------------------------------------------------------------------

function make(name, properties = {}, children = []) {
  const node = document.createElement(name);
  const { data, ...rest } = properties;
  Object.assign(node, rest);
  Object.assign(node.dataset, data ?? {});
  node.append(...children);
  return node;
}

function button(label, action, className = "") { return make("button", { type: "button", textContent: label, className, onclick: action }); }

function drawList() {
  $("list").replaceChildren(...kept.chats.map((chat) => {
    const open = make("button", { type: "button", textContent: chat.title || text("untitled"), onclick: () => show(chat.id) });
    const drop = make("button", { type: "button", className: "drop", textContent: "✕", title: text("drop"), ariaLabel: text("drop"), onclick: () => remove(chat.id) });
    return make("div", { className: chat.id === kept.open ? "entry on" : "entry" }, [open, drop]);
  }));
}

function drawThread() {
  const chat = current();
  $("title").textContent = chat?.title || text("untitled");
  const turns = chat?.turns ?? [];
  $("thread").replaceChildren(...(turns.length ? turns.map((turn, i) => drawTurn(turn, i, i === turns.length - 1)) : [welcome()]));
  scrollDown(true);
}

function welcome() {
  const tries = text("tries").map((line) => button(line, () => { $("input").value = line; grow(); submit(); }));
  const more = facts && facts.chats === false ? text("onlyContinues") : text("helloMore");
  return make("div", { className: "welcome" }, [
    make("img", { src: "icon.svg", alt: "", width: 64, height: 64 }), make("h2", { textContent: text("hello") }), make("p", { textContent: more }),
    make("div", { className: "tries" }, tries),
  ]);
}

function drawTurn(turn, index, last) {
  const body = make("div", { className: "body" });
  if (turn.role === "user") body.textContent = turn.content;
  else body.append(...markdown(turn.content, text("copy")));
  if (turn.error) body.append(make("div", { className: "failure", textContent: turn.error }));
  const tools = make("div", { className: "tools" }, [button(text("copy"), (event) => copy(turn.content, event.target))]);
  if (turn.role === "user") tools.append(button(text("edit"), () => edit(index)));
  else if (last) tools.append(button(text("again"), () => again(index)));
  if (turn.note) tools.append(make("span", { className: "stat", textContent: turn.note }));
  return make("article", { className: `turn ${turn.role}${last ? " last" : ""}`, data: { index } }, [body, tools]);
}

function scrollDown(force = false) {
  const thread = $("thread");
  if (force || thread.scrollHeight - thread.scrollTop - thread.clientHeight < 140) thread.scrollTop = thread.scrollHeight;
}

function drawFacts() {
  if (!facts) return;
  const parameters = facts.parameters >= 1e9 ? `${(facts.parameters / 1e9).toFixed(2)} B` : facts.parameters >= 1e6 ? `${(facts.parameters / 1e6).toFixed(1)} M` : `${Math.round(facts.parameters / 1e3)} k`;
  $("facts").textContent = text("facts", { ...facts, parameters });
}

function drawAll() {
  setLanguage(settings.lang);
  $("input").placeholder = text("ask");
  $("input").setAttribute("aria-label", text("ask"));
  $("note").textContent = text("note");
  drawList();
  drawThread();
  drawFacts();
}

// -- actions --------------------------------------------------------------------------------------------------------------

function show(id) {
  if (running) running.abort();
  kept.open = id;
  document.body.classList.remove("side");
  save(); drawList(); drawThread();
  $("input").focus();
}

function remove(id) {
  if (running && kept.open === id) running.abort();
  kept.chats = kept.chats.filter((chat) => chat.id !== id);
  if (kept.open === id) kept.open = kept.chats[0]?.id ?? null;
  save(); drawList(); drawThread();
}

async function copy(what, target) {
  try { await navigator.clipboard.writeText(what); } catch {
    const area = make("textarea", { value: what });
    document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  const label = target.textContent;
  target.textContent = text("copied");
  setTimeout(() => { target.textContent = label; }, 1200);
}

function edit(index) {
  const chat = current();
  const article = $("thread").querySelector(`[data-index="${index}"]`);
  const area = make("textarea", { value: chat.turns[index].content, rows: 3 });
  const done = () => { chat.turns.length = index; save(); ask(area.value); };
  area.onkeydown = (event) => {
    if (event.key === "Escape") drawThread();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); if (area.value.trim()) done(); }
  };
  article.replaceChildren(make("div", { className: "edit" }, [area, make("div", {}, [button(text("cancel"), drawThread), button(text("resend"), () => area.value.trim() && done(), "primary")])]));
  area.focus();
}

function again(index) {
  const chat = current();
  chat.turns.length = index;
  const question = chat.turns.pop();
  if (question) ask(question.content);
}

function submit() {
  const words = $("input").value.trim();
  if (!words || running) return;
  $("input").value = "";
  grow();
  ask(words);
}

function ask(words) {
  const chat = ensureChat();
  if (!chat.title) chat.title = words.slice(0, 60);
  chat.turns.push({ role: "user", content: words });
  chat.turns.push({ role: "assistant", content: "" });
  save(); drawList(); drawThread();
  answer(chat);
}

function requestBody(chat) {
  const said = chat.turns.slice(0, -1).filter((turn) => turn.content).map(({ role, content }) => ({ role, content }));
  const messages = [];
  for (const turn of said) { // an answer that failed leaves two questions in a row: they become one
    const before = messages.at(-1);
    if (before && before.role === turn.role) before.content += `\n\n${turn.content}`;
    else messages.push(turn);
  }
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system.trim() });
  return { messages, stream: true, temperature: settings.temperature, top_k: settings.topk, max_tokens: settings.max };
}

async function answer(chat) {
  const turn = chat.turns.at(-1);
  const controller = new AbortController();
  running = controller;
  $("send").hidden = true; $("stop").hidden = false;
  const article = $("thread").lastElementChild;
  article.classList.add("live");
  const started = performance.now();
  let pieces = 0, finish = null, frame = 0;
  const draw = () => {
    frame = 0;
    if (kept.open !== chat.id) return;
    article.querySelector(".body").replaceChildren(...markdown(turn.content, text("copy")));
    scrollDown();
  };
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", signal: controller.signal, body: JSON.stringify(requestBody(chat)),
      headers: { "content-type": "application/json", ...(settings.token ? { authorization: `Bearer ${settings.token}` } : {}) },
    });
    if (!response.ok) throw await refusal(response);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices?.[0];
      if (choice?.delta?.content) { turn.content += choice.delta.content; pieces += 1; frame ||= requestAnimationFrame(draw); }
      finish = choice?.finish_reason ?? finish;
    }
    if (finish === null) throw new Error(text("broke"));
    connected(true);
  } catch (error) {
    if (error.name === "AbortError") finish = "stopped";
    else {
      turn.error = error instanceof TypeError ? text("gone") : error.message;
      if (error instanceof TypeError) connected(false);
    }
  }
  const rate = pieces / ((performance.now() - started) / 1000);
  const why = { length: text("cut"), context: text("full"), stopped: text("stopped") }[finish];
  turn.note = [why, pieces > 1 ? `${rate < 10 ? rate.toFixed(1) : Math.round(rate)} ${text("perSecond")}` : ""].filter(Boolean).join(" · ");
  if (frame) cancelAnimationFrame(frame);
  if (running === controller) { running = null; $("send").hidden = false; $("stop").hidden = true; }
  save();
  if (kept.open === chat.id) drawThread();
  $("input").focus({ preventScroll: true });
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const said = body.error?.message ?? `HTTP ${response.status}`;
  if (response.status === 401) { openSettings(); return new Error(text("needToken")); }
  if (response.status === 429) return new Error(text("busy"));
  if (body.error?.code === "context_length_exceeded") return new Error(text("tooLong"));
  return new Error(said);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    const lines = buffer.split("\n\n");
    buffer = lines.pop();
    for (const line of lines) {
      const data = line.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// -- the server's health --------------------------------------------------------------------------------------------------

let reachable = true;

function connected(yes) {
  if (yes !== reachable) {
    $("state").textContent = yes ? text("back") : text("gone");
    $("state").classList.toggle("bad", !yes);
    if (yes) setTimeout(() => { if (reachable) $("state").textContent = ""; }, 3000);
  }
  reachable = yes;
}

async function look() {
  try {
    const response = await fetch("health", { cache: "no-store" });
    connected(response.ok);
    if (response.ok && !facts) {
      const found = await fetch("facts", { headers: settings.token ? { authorization: `Bearer ${settings.token}` } : {} });
      if (found.ok) {
        facts = await found.json();
        document.title = facts.model;
        $("max").max = Math.max(32, facts.context);
        drawFacts();
        if (!current()?.turns.length) drawThread();
      }
    }
  } catch { connected(false); }
  setTimeout(look, reachable ? 15000 : 2000);
}

// -- settings and keys ----------------------------------------------------------------------------------------------------

function openSettings() {
  for (const name of ["temperature", "topk", "max", "system", "token"]) $(name).value = settings[name];
  showValues();
  if (!$("settings").open) $("settings").showModal();
}

function showValues() {
  $("temperature-now").value = Number($("temperature").value).toFixed(1);
  $("topk-now").value = $("topk").value;
  $("max-now").value = $("max").value;
}

function keepSettings() {
  for (const name of ["temperature", "topk", "max"]) settings[name] = Number($(name).value);
  settings.system = $("system").value;
  settings.token = $("token").value.trim();
  showValues(); save();
}

function theme(next) {
  settings.theme = next;
  document.documentElement.dataset.theme = next || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function grow() {
  const area = $("input");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
  $("send").disabled = !area.value.trim();
}

$("composer").onsubmit = (event) => { event.preventDefault(); submit(); };
$("input").oninput = grow;
$("input").onkeydown = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); } };
$("stop").onclick = () => running?.abort();
$("new").onclick = () => { if (running) running.abort(); kept.open = null; document.body.classList.remove("side"); save(); drawList(); drawThread(); $("input").focus(); };
$("side-open").onclick = () => document.body.classList.add("side");
$("side-close").onclick = $("shade").onclick = () => document.body.classList.remove("side");
$("theme").onclick = () => { theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); save(); };
$("lang").onclick = () => { settings.lang = settings.lang === "zh" ? "en" : "zh"; save(); drawAll(); };
$("settings-open").onclick = openSettings;
$("settings").oninput = keepSettings;
$("settings").onclose = () => { keepSettings(); facts = facts ?? null; };
$("erase").onclick = () => { if (confirm(text("eraseSure"))) { if (running) running.abort(); kept.chats = []; kept.open = null; save(); drawAll(); $("settings").close(); } };
$("thread").onclick = (event) => { const target = event.target.closest(".copy-code"); if (target) copy(target.dataset.code, target); };
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !$("settings").open) running.abort();
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("new").click(); }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (!settings.theme) theme(""); });

settings.lang ||= navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
theme(settings.theme);
drawAll();
grow();
look();
$("input").focus();
