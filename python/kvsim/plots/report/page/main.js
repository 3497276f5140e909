/** Ties the views together: the choice above them, keys, the address, and drawing. */

const KEYS = [
  ["← →", "one step back or on"], ["n, p", "next or last of the worst steps"], ["[ ]", "smaller or larger budget"],
  ["j, k", "next or last policy of the table (A)"], ["x", "exchange A and B"], ["↑ ↓", "next or last layer"],
  ["0", "all layers, heads and steps"], ["m", "what colours the text"], ["/", "find in the text; Enter: next place"],
  ["PgUp, PgDn on the strip", "earlier or later part of a long prompt"], ["t", "light, dark, or as the system"],
  ["?", "these keys"]];

/** @type {Promise<void>} */
let drawing = Promise.resolve();
let wanted = 0;

/** Draws everything once the current drawing is done; requests in between count as one. */
function redraw() {
  const ticket = ++wanted;
  drawing = drawing.then(() => ticket === wanted ? drawAll() : undefined).catch(fail);
}

/** When everything asked for has been drawn. */
async function redrawn() {
  let seen;
  do {
    seen = wanted;
    await drawing;
  } while (seen !== wanted);
}

async function drawAll() {
  if (state.step < 0) {
    const [worst] = await worstSteps(state.policy, 1);
    state.step = worst ? worst.step : trace().steps[0] ?? -1;
  }
  colourSides();
  drawHeader();
  drawChoice();
  drawVerdict();
  await drawSteps();
  await drawText();
  await drawLooked();
  await drawMaps();
  await drawSpans();
  drawRecord();
}

/** @param {unknown} error */
function fail(error) {
  const line = at("failure");
  line.hidden = false;
  line.textContent = typeof DecompressionStream === "undefined"
    ? "This browser is too old for the page: it has no DecompressionStream."
    : `The page could not be drawn: ${error instanceof Error ? error.message : error}`;
  console.error(error);
}

function drawHeader() {
  const here = trace(), several = content.traces.length;
  at("title").textContent = content.title;
  at("subtitle").textContent = `${here.model}; n = ${here.prompt} prompt tokens, T = ${here.steps.length} later steps, ` +
    `${here.layers.length} layer${here.layers.length === 1 ? "" : "s"}${several > 1 ? `; ${several} results files` : ""}`;
}

function drawChoice() {
  const here = trace(), all = {value: "-1", text: "all"};
  at("trace-label").hidden = content.traces.length < 2;
  fill("trace", content.traces.map((one, k) => ({value: String(k), text: one.name})), String(state.trace));
  const policies = here.policies.map((text, k) => ({value: String(k), text}));
  fill("policy", policies, String(state.policy));
  fill("vs", [{value: "-1", text: "none"}, ...policies], String(state.vs));
  fill("budget", here.budgets.map((text, k) => ({value: String(k), text})), String(state.budget));
  fill("layer", [all, ...here.layers.map((layer, k) => ({value: String(k), text: String(layer)}))], String(state.layer));
  fill("head", [all, ...d3.range(here.heads).map((/** @type {number} */ h) => ({value: String(h), text: String(h)}))],
       String(state.head));
  const step = at("step");
  Object.assign(step, {min: here.steps[0], max: here.steps[here.steps.length - 1]});
  if (document.activeElement !== step) step.value = state.step;
}

/** @param {number} by */
function moveStep(by) {
  const steps = trace().steps, k = steps.indexOf(state.step) + by;
  if (k >= 0 && k < steps.length) choose({step: steps[k]});
}

/** @param {number} by */
function moveWorst(by) {
  drawing = drawing.then(() => toWorst(by)).catch(fail);
}

/** @param {number} by */
async function toWorst(by) {
  const worst = await worstSteps(state.policy, WORST);
  if (!worst.length) return;
  const k = worst.findIndex((/** @type {any} */ one) => one.step === state.step);
  choose({step: worst[k < 0 ? 0 : (k + by + worst.length) % worst.length].step});
}

/** @param {number} by */
function movePolicy(by) {
  const order = sortedPolicies().map((/** @type {number} */ p) => trace().policies.indexOf(content.verdict.policies[p]))
    .filter((/** @type {number} */ p) => p >= 0);
  choose({policy: order[(order.indexOf(state.policy) + by + order.length) % order.length]});
}

/** @param {number} by */
function moveBudget(by) {
  const here = trace();
  const order = d3.range(here.ratios.length).sort((/** @type {number} */ a, /** @type {number} */ b) => here.ratios[a] - here.ratios[b]);
  const next = order[order.indexOf(state.budget) + by];
  if (next !== undefined) choose({budget: next});
}

const ALL = {layer: -1, head: -1, from: -1, to: -1};

/** @type {Record<string, () => void>} */
const ON_KEY = {
  ArrowLeft: () => moveStep(-1), ArrowRight: () => moveStep(1), n: () => moveWorst(1), p: () => moveWorst(-1),
  "[": () => moveBudget(-1), "]": () => moveBudget(1), j: () => movePolicy(1), k: () => movePolicy(-1),
  x: () => state.vs >= 0 && choose({policy: state.vs, vs: state.policy}),
  ArrowDown: () => choose({layer: Math.min(trace().layers.length - 1, state.layer + 1)}),
  ArrowUp: () => choose({layer: Math.max(-1, state.layer - 1)}),
  0: () => choose(ALL),
  m: () => choose({mode: state.mode === "kept" && trace().looked ? "step" : trace().kept ? "kept" : state.mode}),
  "/": () => at("find").focus(), t: () => turnTheme(), "?": () => toggleKeys(),
};

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = event.target instanceof HTMLElement ? event.target : null;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && target) target.blur();
  if (target && /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
  if (/^Arrow(Up|Down)$/.test(event.key) && target && target.closest(".tokens, .scroll, svg")) return;
  // Up and down scroll the page unless something of it is at hand.
  if (/^Arrow(Up|Down)$/.test(event.key) && (!target || target === document.body)) return;
  const action = ON_KEY[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function toggleKeys() {
  const box = at("keys");
  box.hidden = !box.hidden;
  at("help").setAttribute("aria-expanded", String(!box.hidden));
  const list = make("dl");
  for (const [key, meaning] of KEYS) list.append(make("dt", {}, make("kbd", {}, key)), make("dd", {}, meaning));
  box.replaceChildren(list);
}

/** "", "light" or "dark": what the reader asked for. */
let theme = "";

function applyTheme() {
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  at("theme").textContent = `Theme: ${theme || "system"}`;
}

function turnTheme() {
  theme = theme === "" ? "light" : theme === "light" ? "dark" : "";
  applyTheme();
  redraw();
}

function listen() {
  at("choice").addEventListener("submit", (/** @type {Event} */ event) => event.preventDefault());
  for (const id of /** @type {const} */ (["trace", "policy", "vs", "budget", "layer", "head"]))
    at(id).addEventListener("change", () => choose({[id]: Number(at(id).value)}));
  at("step").addEventListener("change", () => choose({step: nearestStep(Number(at("step").value))}));
  at("worse").addEventListener("click", () => moveWorst(1));
  at("reset").addEventListener("click", () => choose(ALL));
  for (const [id, key] of [["measure", "measure"], ["series1", "series1"], ["series2", "series2"], ["map-measure", "map"]])
    at(id).addEventListener("change", () => choose({[key]: at(id).value}));
  for (const radio of document.querySelectorAll("input[name=mode]"))
    radio.addEventListener("change", () => choose({mode: /** @type {any} */ (radio).value}));
  at("find").addEventListener("input", () => choose({find: at("find").value}));
  at("find").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter") {
      event.preventDefault();
      nextHit(event.shiftKey ? -1 : 1);
    }
  });
  for (const side of ["a", "b"]) at(`pane-${side}`).addEventListener("click", onToken);
  at("later").addEventListener("click", (/** @type {Event} */ event) => {
    const token = event.target instanceof Element ? event.target.closest(".tok") : null;
    if (token instanceof HTMLElement) choose({step: nearestStep(Number(token.dataset.at))});
  });
  listenToStrip();
  at("theme").addEventListener("click", turnTheme);
  at("help").addEventListener("click", toggleKeys);
  at("copy").addEventListener("click", copyLink);
  document.addEventListener("keydown", onKey);
  // Whoever drives the page from outside can wait for the drawing.
  document.addEventListener("kvsim-settle", (event) => redrawn().then(/** @type {CustomEvent} */ (event).detail));
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) === addressOf()) return;
    readAddress(location.hash.slice(1));
    redraw();
  });
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { applyTheme(); redraw(); });
}

/** @param {Event} event */
function onToken(event) {
  const token = event.target instanceof Element ? event.target.closest(".tok") : null;
  if (token instanceof HTMLElement) showToken(Number(token.dataset.at));
}

/** A click on the strip, or a key, chooses the part of the prompt that is shown. */
function listenToStrip() {
  const strip = at("overview");
  strip.addEventListener("click", (/** @type {MouseEvent} */ event) => {
    const box = strip.getBoundingClientRect();
    showToken(Math.min(trace().prompt - 1, Math.floor((event.clientX - box.left) / box.width * trace().prompt)));
  });
  strip.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const by = /** @type {Record<string, number>} */ ({PageDown: WINDOW, ArrowRight: WINDOW / 4, PageUp: -WINDOW,
                                                       ArrowLeft: -WINDOW / 4})[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    choose({at: Math.max(0, Math.min(trace().prompt - WINDOW, state.at + by))});
  });
}

async function copyLink() {
  const button = at("copy");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "See address";   // the link is there in any case
  }
  setTimeout(() => { button.textContent = "Link"; }, 1500);
}

function start() {
  try {
    content = JSON.parse(at("content").textContent);
    readAddress(location.hash.slice(1));
    hideMost();
    applyTheme();
    listen();
    redraw();
    redrawn().then(() => { document.documentElement.dataset.ready = String(Math.round(performance.now())); });
  } catch (error) {
    fail(error);
  }
}
