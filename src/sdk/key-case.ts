/** Converts names between the API (`memory_mb`) and JavaScript (`memoryMb`). */

/** A copy in which the keys of all objects, however deep, are camelCase, but for those of labels, variables and headers. */
export function camelKeys<T>(value: unknown): T {
  return withKeys(value, (key) => key.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase())) as T;
}

/** The inverse of camelKeys. */
export function snakeKeys<T>(value: unknown): T {
  return withKeys(value, (key) => key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)) as T;
}

/** Fields whose keys are a client's own and stay as they are. */
const opaque = new Set(["labels", "envs", "headers"]);

function withKeys(value: unknown, rename: (key: string) => string): unknown {
  if (Array.isArray(value)) return value.map((each) => withKeys(each, rename));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, each]) => [rename(key), opaque.has(key) ? each : withKeys(each, rename)]),
  );
}
