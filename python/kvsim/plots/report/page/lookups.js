/** The list of what the chosen step looked for, and what of it each policy had thrown away. */

const LISTED = 14;

async function drawLooked() {
  const here = trace(), words = await tokenTexts(), table = at("looked"), lead = at("looked-lead");
  const title = `What step ${state.step}${words ? ` ${JSON.stringify(oneLine(words[state.step]))}` : ""} looked for`;
  at("looked-title").replaceChildren(make("bdi", {}, title));
  const own = await lookedFor(state.step, state.policy, state.budget);
  const beside = state.vs >= 0 ? await lookedFor(state.step, state.vs, state.budget) : null;
  table.replaceChildren();
  if (!own) {
    lead.replaceChildren(...missingStep());
    return;
  }
  const byLoss = Array.from(own.entries).sort(([i, a], [k, b]) => b.lost - a.lost || b.importance - a.importance || i - k);
  const lost = d3.sum(byLoss, (/** @type {any} */ [, one]) => one.lost);
  lead.textContent = `The entries that ${here.policies[state.policy]} cost it most; ${place()}. Listed entries carried ` +
    `${percent(own.listed)} of the importance; of the whole, ${percent(lost)} was lost on them.`;
  const most = d3.max(byLoss, (/** @type {any} */ [, one]) => one.importance) || 1;
  const head = [["Prompt token", "words"], ["Position", ""], ["Importance", ""]];
  for (const side of beside ? ["A", "B"] : ["A"]) head.push([`${side}: lost and kept`, "words"], ["lost", ""]);
  table.append(make("thead", {}, make("tr", {}, ...head.map(([text, name]) => make("th", {scope: "col", class: name}, text)))));
  const body = make("tbody");
  for (const [i, found] of byLoss.slice(0, LISTED)) {
    const row = make("tr", {tabindex: "0", "data-at": String(i)},
                     make("td", {class: "words"}, words ? context(words, i) : `entry ${i}`),
                     make("td", {}, String(i)), make("td", {}, number(found.importance)), ...split(found, most));
    const other = beside?.entries.get(i);
    if (beside) row.append(...split(other || {importance: found.importance, lost: 0}, most));
    row.addEventListener("click", () => showToken(i));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") showToken(i); });
    body.append(row);
  }
  table.append(body);
}

/**
 * A token between its neighbours.
 * @param {string[]} words @param {number} i
 */
function context(words, i) {
  const before = words.slice(Math.max(0, i - 4), i).map(oneLine).join("");
  const after = words.slice(i + 1, Math.min(i + 5, trace().prompt)).map(oneLine).join("");
  return make("bdi", {}, before, make("b", {}, make("mark", {}, oneLine(words[i]) || " ")), after);
}

/** @param {{importance: number, lost: number}} found @param {number} most */
function split(found, most) {
  const bar = make("span", {class: "bar"});
  for (const [name, value] of /** @type {[string, number][]} */ ([["l", found.lost], ["k", found.importance - found.lost]])) {
    const part = make("i", {class: name});
    part.style.width = `${100 * Math.max(0, value) / most}%`;
    bar.append(part);
  }
  const share = found.importance > 0 ? found.lost / found.importance : 0;
  return [make("td", {class: "words"}, bar), make("td", {}, percent(share))];
}

/**
 * Why there is no list, and the nearest step that has one.
 * @returns {(Node|string)[]}
 */
function missingStep() {
  const looked = trace().looked;
  if (!looked || !looked.steps.length) return ["This needs the trace, which was not at hand when the page was made."];
  const nearest = looked.steps.reduce((best, step) =>
    Math.abs(step - state.step) < Math.abs(best - state.step) ? step : best);
  const button = make("button", {type: "button"}, `step ${nearest}`);
  button.addEventListener("click", () => choose({step: nearest}));
  return [`The page has this for the worst ${looked.steps.length === 1 ? "step" : `${looked.steps.length} steps`} only; the nearest is `, button, "."];
}
