/** The prompt, coloured by what became of it; long ones a part at a time. */

const WINDOW = 1200;    // tokens of the prompt that are shown at a time

/**
 * A token with its text as text.
 * @param {string} text @param {number} position
 */
function tokenElement(text, position) {
  const element = make("span", {class: "tok", "data-at": String(position)});
  for (const [part, isSign] of visibleParts(text))
    element.append(isSign ? make("span", {class: "sign"}, part) : part);
  return element;
}

/**
 * What colours the prompt under one policy.
 * @param {number} policy
 */
async function colouring(policy) {
  if (state.mode === "kept") {
    return {kept: await keptShares(policy, state.budget), looked: null, most: 0};
  }
  const looked = await lookedFor(state.step, policy, state.budget);
  const most = looked ? d3.max(Array.from(looked.entries.values()), (/** @type {any} */ one) => one.importance) : 0;
  return {kept: await keptShares(policy, state.budget), looked, most: most || 0};
}

/** @typedef {{kept: {kept: Float32Array, merged: Float32Array|null, heads: number}|null,
 *   looked: {entries: Map<number, {importance: number, lost: number}>, listed: number}|null, most: number}} Colouring */

/** @param {HTMLElement} token @param {number} i @param {Colouring} colours */
function colour(token, i, colours) {
  if (state.mode === "kept") {
    if (!colours.kept) return;
    const share = colours.kept.kept[i];
    token.style.backgroundColor = `rgba(var(--kept), ${(0.62 * share).toFixed(3)})`;
    if (share === 0) token.classList.add("gone");
    return;
  }
  const found = colours.looked?.entries.get(i);
  if (!found || !colours.most) return;
  const lost = found.lost > found.importance / 2;
  const depth = Math.sqrt(found.importance / colours.most);
  token.style.backgroundColor = `rgba(var(${lost ? "--lost" : "--kept"}), ${(0.8 * depth).toFixed(3)})`;
  if (lost) token.classList.add("lost");
}

/**
 * What is known of a token, in words.
 * @param {number} i @param {string[]|null} words @param {Colouring} colours
 */
function tipText(i, words, colours) {
  const lines = [`${i}: ${words ? JSON.stringify(oneLine(words[i])) : "prompt entry"}`];
  const span = trace().spans.find((one) => one.begin <= i && i < one.end);
  if (span) lines.push(`span ${span.name}`);
  if (colours.kept) {
    const {kept, merged, heads} = colours.kept;
    lines.push(`kept by ${Math.round(kept[i] * heads)} of ${heads} (${place()}): ${percent(kept[i])}`);
    if (merged && merged[i] > 0) lines.push(`part of another entry in ${Math.round(merged[i] * heads)}`);
  }
  const found = colours.looked?.entries.get(i);
  if (found) {
    lines.push(`step ${state.step} gave it ${percent(found.importance)} of its importance`);
    lines.push(`${percent(found.importance > 0 ? found.lost / found.importance : 0)} of that was lost`);
  }
  return lines.join("\n");
}

async function drawText() {
  const here = trace(), words = await tokenTexts();
  for (const radio of document.querySelectorAll("input[name=mode]")) {
    const input = /** @type {HTMLInputElement} */ (radio);
    input.checked = input.value === state.mode;
    input.disabled = input.value === "kept" ? !here.kept : !here.looked;
  }
  state.at = Math.max(0, Math.min(state.at, here.prompt - 1));
  const first = here.prompt <= WINDOW ? 0 : Math.min(state.at, here.prompt - WINDOW);
  const end = Math.min(here.prompt, first + WINDOW);
  const hits = words ? findText(words) : [];
  drawLegend();
  drawPager(first, end);
  const sides = [["a", state.policy], ["b", state.vs]];
  for (const [side, policy] of /** @type {[string, number][]} */ (sides)) {
    if (side === "b") at("pane-b-side").hidden = policy < 0;
    if (policy < 0) continue;
    const colours = await colouring(policy);
    at(`pane-${side}-title`).replaceChildren(
      make("span", {class: `badge ${side}`}, side.toUpperCase()), ` ${here.policies[policy]} `,
      `at ${here.budgets[state.budget]}, ${place()}`);
    drawPane(at(`pane-${side}`), words, colours, first, end, hits);
    if (side === "a") drawOverview(colours, first, end, hits);
  }
  at("pane-a").parentElement.parentElement.classList.toggle("single", state.vs < 0);
}

/** @param {HTMLElement} pane @param {string[]|null} words @param {Colouring} colours @param {number} first
 * @param {number} end @param {{begin: number, end: number}[]} hits */
function drawPane(pane, words, colours, first, end, hits) {
  const here = trace(), pieces = document.createDocumentFragment(), isHit = new Set();
  for (const hit of hits) for (let i = hit.begin; i < hit.end; ++i) isHit.add(i);
  for (let i = first; i < end; ++i) {
    for (const span of here.spans)
      if (span.begin === i) pieces.append(make("span", {class: "span-tag"}, `${span.name} ▸`));
    const token = words ? tokenElement(words[i], i) : make("span", {class: "tok", "data-at": String(i)}, `${i} `);
    colour(token, i, colours);
    if (isHit.has(i)) token.classList.add("hit");
    if (i === picked) token.classList.add("chosen");
    pieces.append(token);
    for (const span of here.spans)
      if (span.end === i + 1) pieces.append(make("span", {class: "span-tag"}, `◂ ${span.name}`));
  }
  const top = pane.dataset.first === String(first) ? pane.scrollTop : 0;
  pane.dataset.first = String(first);
  pane.replaceChildren(pieces);
  pane.scrollTop = top;
  pane.onmousemove = (event) => tokenTip(event.target, event.clientX, event.clientY, words, colours);
  pane.onmouseleave = hideTip;
}

/** @param {EventTarget|null} target @param {number} x @param {number} y @param {string[]|null} words
 * @param {Colouring} colours */
function tokenTip(target, x, y, words, colours) {
  const token = target instanceof Element ? target.closest(".tok") : null;
  if (!(token instanceof HTMLElement)) return hideTip();
  showTip(tipText(Number(token.dataset.at), words, colours), x, y);
}

/** The token that was clicked, or looked up in the list; -1: none. */
let picked = -1;

/**
 * Brings a token of the prompt into view.
 * @param {number} position
 */
function showToken(position) {
  picked = position;
  const first = Number(at("pane-a").dataset.first || 0);
  if (position < first || position >= first + WINDOW) choose({at: Math.max(0, position - WINDOW / 4)});
  redrawn().then(() => {
    for (const side of ["a", "b"]) {
      const pane = at(`pane-${side}`), token = pane.querySelector(`[data-at="${position}"]`);
      pane.querySelectorAll(".chosen").forEach((/** @type {Element} */ one) => one.classList.remove("chosen"));
      if (!token) continue;
      token.classList.add("chosen");
      pane.scrollTop = token.offsetTop - pane.offsetTop - pane.clientHeight / 2;
    }
  });
}

/**
 * Runs of tokens that the text searched for touches.
 * @param {string[]} words @returns {{begin: number, end: number}[]}
 */
function findText(words) {
  const wanted = state.find.toLowerCase(), found = at("found");
  found.textContent = "";
  if (at("find").value !== state.find && document.activeElement !== at("find")) at("find").value = state.find;
  if (!wanted) return [];
  const starts = [0];
  const prompt = words.slice(0, trace().prompt).map((word) => word.toLowerCase());
  for (const word of prompt) starts.push(starts[starts.length - 1] + word.length);
  const text = prompt.join(""), hits = [];
  for (let from = text.indexOf(wanted); from >= 0; from = text.indexOf(wanted, from + wanted.length)) {
    hits.push({begin: d3.bisectRight(starts, from) - 1, end: d3.bisectLeft(starts, from + wanted.length)});
  }
  found.textContent = hits.length === 1 ? "1 place" : `${hits.length} places`;
  return hits;
}

/**
 * Goes to the next place of the text searched for.
 * @param {number} direction 1 or -1
 */
function nextHit(direction) {
  drawing = drawing.then(() => toHit(direction)).catch(fail);
}

/** @param {number} direction */
async function toHit(direction) {
  const words = await tokenTexts();
  const hits = words ? findText(words) : [];
  if (!hits.length) return;
  const after = hits.filter((hit) => direction > 0 ? hit.begin > picked : hit.begin < picked);
  const hit = direction > 0 ? after[0] || hits[0] : after[after.length - 1] || hits[hits.length - 1];
  showToken(hit.begin);
}

function drawLegend() {
  const legend = at("text-legend");
  const swatch = (/** @type {string} */ colours) => {
    const one = make("i");
    one.style.background = colours;
    return one;
  };
  if (!trace().kept && !trace().looked) {
    return legend.replaceChildren("This page has neither kept sets nor what steps looked for: they need the trace.");
  }
  const kept = "linear-gradient(to right, rgba(var(--kept), 0.03), rgba(var(--kept), 0.62))";
  if (state.mode === "kept") {
    const gone = make("span", {class: "tok gone"}, "struck out");
    legend.replaceChildren("Share of heads that keep a token:", swatch(kept), "none to all; ", gone, ": no head kept it");
  } else {
    const lost = make("span", {class: "tok lost"}, "underlined");
    legend.replaceChildren(`Depth: importance to step ${state.step}.`, swatch("rgba(var(--kept), 0.7)"),
                           "mostly kept", swatch("rgba(var(--lost), 0.7)"), "mostly lost, and ", lost);
  }
  const changing = [state.policy, state.vs].map((p) => trace().policies[p]).filter((p) => trace().changing.includes(p));
  if (changing.length) legend.append(` — ${changing.join(", ")}: what is kept changes over the steps; shown is the last.`);
}

/** @param {number} first @param {number} end */
function drawPager(first, end) {
  const pager = at("pager"), n = trace().prompt;
  const button = (/** @type {string} */ text, /** @type {number} */ to, /** @type {boolean} */ off) => {
    const one = make("button", {type: "button", ...(off ? {disabled: ""} : {})}, text);
    one.addEventListener("click", () => choose({at: Math.max(0, to)}));
    return one;
  };
  const spans = trace().spans.map((span) => {
    const one = make("button", {type: "button", class: "to-span"}, span.name);
    one.addEventListener("click", () => showToken(span.begin));
    return one;
  });
  pager.replaceChildren(make("span", {class: "legend"}, `Tokens ${first} to ${end - 1} of ${n}`),
                        ...(n > WINDOW ? [button("◂ Earlier", first - WINDOW, first === 0),
                                          button("Later ▸", first + WINDOW, end === n)] : []), ...spans);
}

/**
 * The whole prompt in a strip: what the text below shows of it is framed.
 * @param {Colouring} colours
 * @param {number} first @param {number} end @param {{begin: number, end: number}[]} hits
 */
function drawOverview(colours, first, end, hits) {
  const canvas = /** @type {HTMLCanvasElement} */ (at("overview")), n = trace().prompt;
  const scale = devicePixelRatio || 1, width = canvas.clientWidth || 600, height = 34;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const style = getComputedStyle(document.documentElement);
  const ink = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  pen.scale(scale, scale);
  for (let px = 0; px < width; ++px) {
    const from = Math.floor(px * n / width), to = Math.max(from + 1, Math.floor((px + 1) * n / width));
    pen.fillStyle = stripColour(colours, from, Math.min(n, to), ink);
    pen.fillRect(px, 0, 1, height - 6);
  }
  pen.fillStyle = ink("--soft");
  for (const span of trace().spans)
    pen.fillRect(span.begin * width / n, height - 4, Math.max(2, (span.end - span.begin) * width / n), 3);
  pen.fillStyle = ink("--ink");
  for (const hit of hits) pen.fillRect(hit.begin * width / n, 0, 2, 8);
  if (end - first < n) {
    pen.strokeStyle = ink("--ink");
    pen.lineWidth = 1.5;
    pen.strokeRect(first * width / n + 1, 1, (end - first) * width / n - 2, height - 2);
  }
  canvas.setAttribute("aria-valuemin", "0");
  canvas.setAttribute("aria-valuemax", String(n));
  canvas.setAttribute("aria-valuenow", String(first));
}

/** @param {Colouring} colours @param {number} from @param {number} to @param {(name: string) => string} ink */
function stripColour(colours, from, to, ink) {
  if (state.mode === "kept") {
    const share = colours.kept ? d3.mean(colours.kept.kept.subarray(from, to)) : 0;
    return `rgba(${ink("--kept")}, ${share})`;
  }
  let best = {importance: 0, lost: 0};
  for (let i = from; i < to; ++i) {
    const found = colours.looked?.entries.get(i);
    if (found && found.importance > best.importance) best = found;
  }
  const lost = best.lost > best.importance / 2;
  return `rgba(${ink(lost ? "--lost" : "--kept")}, ${colours.most ? Math.sqrt(best.importance / colours.most) : 0})`;
}
