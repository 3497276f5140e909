/** The blocks of the page, unpacked when they are first asked for. */

/** @type {Content} */
let content;

/** @type {Map<string, Promise<any>>} */
const unpacked = new Map();

/**
 * Numbers, or whatever JSON a block holds.
 * @param {string} name @returns {Promise<any>}
 */
function block(name) {
  let found = unpacked.get(name);
  if (!found) {
    found = unpack(name);
    unpacked.set(name, found);
  }
  return found;
}

/** @param {string} name */
async function unpack(name) {
  const element = document.getElementById(`block-${name}`);
  if (!element) throw new Error(`the page has no block ${name}`);
  const text = element.textContent || "";
  const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = await new Response(stream).arrayBuffer();
  element.textContent = "";   // unpacked once is enough
  switch (element.dataset.kind) {
    case "json": return JSON.parse(new TextDecoder().decode(bytes));
    case "float32": return new Float32Array(bytes);
    case "float16": return fromHalf(new Uint16Array(bytes));
    case "int32": return new Int32Array(bytes);
    case "uint8": return new Uint8Array(bytes);
    default: throw new Error(`block ${name} is of an unknown kind`);
  }
}

/**
 * IEEE float16 as float32, by a table of all of them.
 * @param {Uint16Array} halves
 */
function fromHalf(halves) {
  const table = halfTable(), values = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; ++i) values[i] = table[halves[i]];
  return values;
}

/** @type {Float32Array|null} */
let halves = null;

function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(65536);
  for (let bits = 0; bits < 65536; ++bits) {
    const exponent = (bits >> 10) & 31, fraction = bits & 1023, sign = bits >> 15 ? -1 : 1;
    if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) halves[bits] = sign * fraction * 2 ** -24;
    else halves[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return halves;
}

/** @returns {Trace} */
function trace() {
  return content.traces[state.trace];
}

/**
 * Texts of all tokens, or null.
 * @returns {Promise<string[]|null>}
 */
async function tokenTexts() {
  const name = trace().tokens;
  return name ? block(name) : null;
}

/** @param {string} name @returns {Series|undefined} */
function seriesOf(name) {
  return trace().series.find((one) => one.id === name);
}

/**
 * Values of one policy at the chosen budget: pooled over layers ("mean" or "worst" of them), or of one layer.
 * @param {Series} series @param {number} policy @param {"mean"|"worst"} fold @param {number} budget
 * @returns {Promise<{values: Float32Array, bounds: number[]}>}
 */
async function seriesValues(series, policy, fold, budget) {
  const layer = series.layered ? state.layer : -1, ofHead = headSeries(series);
  if (ofHead) return headValues(ofHead, policy, budget, layer);
  const name = series.layered && series.worst ? (fold === "mean" ? series.mean : series.worst) : series.mean;
  if (layer < 0) {
    const all = await block(`${name}-${policy}`), count = series.bounds.length - 1;
    return {values: all.subarray(budget * count, (budget + 1) * count), bounds: series.bounds};
  }
  const bounds = series.layerBounds || series.bounds, count = bounds.length - 1, layers = trace().layers.length;
  const all = await block(`${series.layerExact ? series.mean : name}-layer-${policy}`);
  const first = (budget * layers + layer) * count;
  return {values: all.subarray(first, first + count), bounds};
}

/**
 * The same measure of the chosen head, where the page has it.
 * @param {Series} series
 * @returns {LayerMap|undefined}
 */
function headSeries(series) {
  if (!series.layered || state.layer < 0 || state.head < 0) return undefined;
  return trace().maps.find((one) => one.id === `${series.id}_head` && one.bounds);
}

/**
 * @param {LayerMap} map
 * @param {number} policy
 * @param {number} budget
 * @param {number} layer
 */
async function headValues(map, policy, budget, layer) {
  const bounds = map.bounds || [], count = bounds.length - 1, head = state.head, layers = trace().layers.length;
  const all = await block(`${map.blocks}-${policy}`), first = ((budget * layers + layer) * map.heads + head) * count;
  return {values: all.subarray(first, first + count), bounds};
}

/**
 * What the values of a series are of, in words.
 * @param {Series} series
 */
function scopeOf(series) {
  if (!series.layered) return "";
  if (state.layer < 0) return "; over all layers";
  return `; layer ${trace().layers[state.layer]}${headSeries(series) ? `, head ${state.head}` : ""}`;
}

/**
 * Per prompt entry, the share of the heads that keep it (or have merged it) in the chosen layer and head.
 * @param {number} policy @param {number} budget
 * @returns {Promise<{kept: Float32Array, merged: Float32Array|null, heads: number}|null>}
 */
async function keptShares(policy, budget) {
  const sets = trace().kept;
  if (!sets || policy < 0) return null;
  const name = `${sets.blocks}-${policy}-${budget}`, all = await block(name);
  if (sets.pooled) {
    return {kept: Float32Array.from(all, (/** @type {number} */ value) => value / 255), merged: null,
            heads: trace().layers.length * sets.owners[policy].count};
  }
  const hasMerged = sets.merged[policy] && document.getElementById(`block-${name}-merged`);
  const kept = countBits(all, policy);
  const merged = hasMerged ? countBits(await block(`${name}-merged`), policy).share : null;
  return {kept: kept.share, merged, heads: kept.heads};
}

/**
 * Share of set bits per entry over the chosen layers and heads. Bits: [layer][entry][bytes of heads].
 * @param {Uint8Array} bits @param {number} policy
 */
function countBits(bits, policy) {
  const sets = /** @type {KeptSets} */ (trace().kept), n = trace().prompt, owners = sets.owners[policy];
  const bytes = Math.ceil(owners.count / 8), owner = ownerOf(policy);
  const layers = state.layer < 0 ? d3.range(trace().layers.length) : [state.layer];
  const heads = layers.length * (owner < 0 ? owners.count : 1);
  const share = new Float32Array(n);
  for (const layer of layers) {
    for (let i = 0; i < n; ++i) {
      const first = (layer * n + i) * bytes;
      if (owner >= 0) {
        share[i] += (bits[first + (owner >> 3)] >> (owner & 7)) & 1;
      } else {
        for (let k = 0; k < bytes; ++k) share[i] += bitCount(bits[first + k]);
      }
    }
  }
  for (let i = 0; i < n; ++i) share[i] /= heads;
  return {share, heads};
}

/** @param {number} byte */
function bitCount(byte) {
  let count = 0;
  for (let rest = byte; rest; rest &= rest - 1) ++count;
  return count;
}

/**
 * The owner of kept sets that the chosen query head belongs to; -1: all of them.
 * @param {number} policy
 */
function ownerOf(policy) {
  if (state.head < 0) return -1;
  const owners = trace().kept?.owners[policy];
  if (!owners || owners.query) return state.head;
  return Math.floor(state.head * owners.count / trace().heads);
}

/**
 * What one step looked for: readers of its listed entries and their shares. Null where the page does not have it.
 * @param {number} position
 */
async function shareAt(position) {
  const looked = trace().looked, at = looked ? looked.steps.indexOf(position) : -1;
  if (!looked || at < 0) return null;
  const part = Math.floor(at / looked.stepsABlock), first = (at % looked.stepsABlock) * trace().layers.length;
  const [entry, share] = await Promise.all([block(`${looked.entry}-${part}`), block(`${looked.share}-${part}`)]);
  const ranks = looked.ranks, heads = looked.heads;
  return {
    looked,
    ranks: (/** @type {number} */ _layer) => d3.range(ranks),
    entry: (/** @type {number} */ layer, /** @type {number} */ k) => entry[(first + layer) * ranks + k],
    share: (/** @type {number} */ layer, /** @type {number} */ head, /** @type {number} */ k) =>
      share[((first + layer) * heads + head) * ranks + k],
  };
}

/**
 * What a step looked for and one policy kept of it: per entry of the prompt, shares of the importance of the chosen
 * layers and heads, means over layers. Null where the page does not have that step.
 * @param {number} position @param {number} policy @param {number} budget
 * @returns {Promise<{entries: Map<number, {importance: number, lost: number}>, listed: number}|null>}
 */
async function lookedFor(position, policy, budget) {
  const sets = trace().kept, found = await shareAt(position);
  if (!found) return null;
  const bits = sets && !sets.pooled && policy >= 0 ? await block(`${sets.blocks}-${policy}-${budget}`) : null;
  const layers = state.layer < 0 ? d3.range(trace().layers.length) : [state.layer];
  const heads = d3.range(found.looked.heads).filter((/** @type {number} */ h) => headIsChosen(h, found.looked));
  const entries = new Map();
  let listed = 0;
  for (const layer of layers) {
    for (const k of found.ranks(layer)) {
      const entry = found.entry(layer, k);
      if (entry < 0) continue;
      const sum = entries.get(entry) || {importance: 0, lost: 0};
      for (const h of heads) {
        const value = found.share(layer, h, k) / layers.length;
        sum.importance += value;
        listed += value;
        if (bits && !isKept(bits, policy, layer, entry, h, found.looked)) sum.lost += value;
      }
      if (sum.importance > 0) entries.set(entry, sum);
    }
  }
  return {entries, listed};
}

/** @param {number} head of the shares @param {LookedFor} looked */
function headIsChosen(head, looked) {
  if (state.head < 0) return true;
  return looked.pooled ? head === Math.floor(state.head * looked.heads / trace().heads) : head === state.head;
}

/**
 * @param {Uint8Array} bits @param {number} policy @param {number} layer @param {number} entry
 * @param {number} head of the shares @param {LookedFor} looked
 */
function isKept(bits, policy, layer, entry, head, looked) {
  const owners = /** @type {KeptSets} */ (trace().kept).owners[policy], bytes = Math.ceil(owners.count / 8);
  const owner = owners.count === looked.heads ? head : Math.floor(head * owners.count / looked.heads);
  const first = (layer * trace().prompt + entry) * bytes;
  return (bits[first + (owner >> 3)] >> (owner & 7)) & 1;
}
