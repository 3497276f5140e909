/** Where the numbers come from: trace, model, command, version, policies and what the page leaves out. */

function drawRecord() {
  const here = trace(), left = [...content.notes, ...here.leftOut];
  at("left-out").replaceChildren(...(left.length ? [
    make("p", {class: "lead"}, "Left out of this page:"), make("ul", {}, ...left.map((text) => make("li", {}, text)))] : []));
  const list = make("dl");
  const row = (/** @type {string} */ name, /** @type {string} */ value) =>
    list.append(make("dt", {}, name.replace(/_/g, " ")), make("dd", {}, make("bdi", {}, value)));
  row("results file", here.file);
  for (const [name, value] of here.record) row(name, value);
  if (content.loops.length) row("closed loops", content.loops.join(", "));
  const policies = here.policies.map((policy) => {
    const parameters = here.parameters[policy] || {}, preset = presetOf(policy);
    const body = make("div");
    if (preset) body.append(make("p", {}, `${preset.summary || ""}${preset.source ? ` (${preset.source})` : ""}`));
    const rows = Object.entries(parameters).map(([key, value]) =>
      make("tr", {}, make("th", {scope: "row"}, key), make("td", {}, String(value))));
    if (rows.length) body.append(make("table", {}, make("tbody", {}, ...rows)));
    return make("details", {"data-policy": policy}, make("summary", {}, policy + (preset?.source ? ` — ${preset.source}` : "")), body);
  });
  at("record").replaceChildren(list, make("h3", {}, "Policies"), ...policies);
  at("footer").textContent = "Written by kvsim report. Charts: D3 (BSD 3-clause licence, in this file's source). " +
    "Nothing was loaded from anywhere.";
}

/** @param {string} policy a record: preset[:variant][,key=value...] */
function presetOf(policy) {
  return content.presets[policy.split(",")[0]];
}
