/** Numbers and texts as a reader sees them. */

/**
 * Three digits, without more than a reader can use.
 * @param {number|null|undefined} value
 */
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-4) return d3.format(".2e")(value);
  if (size < 1e-3) return d3.format(".1r")(value);
  if (size >= 1000) return d3.format(",.0f")(value);
  return d3.format(size >= 100 ? ".1f" : size >= 10 ? ".2f" : ".3f")(value);
}

/** @param {number} value */
function percent(value) {
  return Number.isNaN(value) ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.0995 ? 1 : 0)} %`;
}

// Characters that would change how their neighbours are read, or be seen by nobody: controls, marks of direction,
// spaces of no width, separators of lines, surrogates without a partner, marks of order, tags.
const HIDDEN = new RegExp("[\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff" +
                          "\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}\\ud800-\\udfff]", "gu");

/**
 * Parts of a token's text: [text, is a sign that stands for something].
 * @param {string} text @returns {[string, boolean][]}
 */
function visibleParts(text) {
  /** @type {[string, boolean][]} */
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(HIDDEN)) {
    const at = match.index ?? 0;
    if (at > last) parts.push([text.slice(last, at), false]);
    parts.push([sign(match[0]), true]);
    last = at + match[0].length;
  }
  if (last < text.length) parts.push([text.slice(last), false]);
  return parts.length ? parts : [["\u2205", true]];
}

/** @param {string} character */
function sign(character) {
  if (character === "\n") return "\u23ce\n";
  if (character === "\t") return "\u2192\t";
  const code = character.codePointAt(0) ?? 0;
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/**
 * A token's text on one line, for lists and tips.
 * @param {string|undefined} text
 */
function oneLine(text) {
  if (text === undefined) return "";
  return visibleParts(text).map(([part]) => part.replace(/\n|\t/g, "")).join("");
}

/** @param {string} tag @param {Record<string, string>} [attributes] @param {...(Node|string)} children */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * The element of this id.
 * @param {string} id @returns {any}
 */
function at(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/**
 * Fills a <select>.
 * @param {string} id @param {{value: string, text: string}[]} options @param {string} chosen
 */
function fill(id, options, chosen) {
  const select = at(id);
  const known = JSON.stringify(options);
  if (select.dataset.known !== known) {
    select.replaceChildren(...options.map((one) => make("option", {value: one.value}, one.text)));
    select.dataset.known = known;
  }
  select.value = chosen;
}

/**
 * How a policy is drawn, as in every figure of `kvsim plot`.
 * @param {string} policy
 */
function look(policy) {
  const found = content.verdict.looks[policy];
  return found ? {...found, colour: `var(--c${found.colour})`} : {colour: "var(--soft)", dash: "", marker: "o"};
}

/** The marks and frames of A and B are in the colours of their policies. */
function colourSides() {
  const here = trace(), style = document.documentElement.style;
  style.setProperty("--a", look(here.policies[state.policy]).colour);
  style.setProperty("--b", state.vs < 0 ? "var(--soft)" : look(here.policies[state.vs]).colour);
}

/**
 * A short text near the pointer.
 * @param {string} text @param {number} x @param {number} y
 */
function showTip(text, x, y) {
  const tip = at("tip");
  tip.textContent = text;
  tip.hidden = !text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 16}px`;
}

function hideTip() {
  at("tip").hidden = true;
}

/** What is looked at, in words. */
function place() {
  const parts = [];
  if (state.layer >= 0) parts.push(`layer ${trace().layers[state.layer]}`);
  if (state.head >= 0) parts.push(`head ${state.head}`);
  return parts.length ? parts.join(", ") : "all layers and heads";
}
