/** The chart library is used as it comes; its types are not among Debian's packages. */
declare const d3: any;
/** In every browser since 2023, but not in the types of TypeScript 4.8. */
declare class DecompressionStream { constructor(format: string); readable: ReadableStream; writable: WritableStream; }
