/**
 * What the page reads: written by plots/report/, specified in docs/report.md.
 * @typedef {{id: string, label: string, unit: string, better: "high"|"low"|"none"}} Named
 * @typedef {Named & {variable: string, fold: string, values: (number|null)[][], low: (number|null)[][]|null,
 *   high: (number|null)[][]|null, traces: (number|null)[][][]|null,
 *   marks: string[][], equal: string[][]}} VerdictMeasure
 * @typedef {{policies: string[], budgets: {label: string, ratio: number}[], traces: string[],
 *   measures: VerdictMeasure[], looks: Record<string, {colour: number, dash: string, marker: string}>,
 *   hindsight: boolean[], apart: boolean[][], held: (number|null)[][]}} Verdict
 * @typedef {Named & {layered: boolean, mean: string, worst: string|null, bounds: number[],
 *   layerBounds?: number[], layerExact?: boolean}} Series
 * @typedef {Named & {heads: number, blocks: string, bounds: number[]|null}} LayerMap
 * @typedef {{blocks: string, pooled: boolean, merged: boolean[], owners: {query: boolean, count: number}[]}} KeptSets
 * @typedef {{steps: number[], ranks: number, heads: number, pooled: boolean, stepsABlock: number, entry: string,
 *   share: string}} LookedFor
 * @typedef {{name: string, begin: number, end: number}} Span
 * @typedef {{name: string, file: string, model: string, prompt: number, steps: number[], layers: number[],
 *   policies: string[], budgets: string[], ratios: number[], kvHeads: number, heads: number,
 *   record: [string, string][], parameters: Record<string, Record<string, string>>, spans: Span[],
 *   tokens: string|null, series: Series[], maps: LayerMap[], heads_kept: Record<string, string>, kept: KeptSets|null,
 *   looked: LookedFor|null, spanRates: Record<string, string>, changing: string[],
 *   leftOut: string[]}} Trace
 * @typedef {{title: string, verdict: Verdict, traces: Trace[], notes: string[], loops: string[],
 *   presets: Record<string, {summary: string, source: string}>}} Content
 *
 * What is chosen: indices into the trace at hand; -1 stands for all, or none.
 * @typedef {{trace: number, policy: number, vs: number, budget: number, layer: number, head: number, step: number,
 *   from: number, to: number, measure: string, series1: string, series2: string, map: string, mode: "kept"|"step",
 *   at: number, find: string, sort: string}} State
 *
 * @typedef {{points: [number, number][], colour: string, dash?: string, width?: number, label: string,
 *   marker?: string, opacity?: number}} Line
 * @typedef {{x: number, low: number, high: number, colour: string}} Whisker
 */
