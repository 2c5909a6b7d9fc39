/** Which methods each registered path answers: tells a wrong method from a wrong path. */
export class KnownPaths {
  readonly #paths = new Map<string, { pattern: RegExp; methods: Set<string> }>();

  add(route: { url: string; method: string | string[] }): void {
    const known = this.#paths.get(route.url) ?? { pattern: patternOf(route.url), methods: new Set() };
    for (const method of [route.method].flat()) known.methods.add(method);
    this.#paths.set(route.url, known);
  }

  methodsOf(path: string): string[] | undefined {
    const methods = [...this.#paths.values()]
      .filter(({ pattern }) => pattern.test(path))
      .flatMap((each) => [...each.methods]);
    return methods.length === 0 ? undefined : methods.sort();
  }
}

/** `/capsules/:id` → one segment of anything in the parameter's place. */
function patternOf(url: string): RegExp {
  const segments = url
    .split("/")
    .map((segment) => (segment === "*" ? ".*" : segment.startsWith(":") ? "[^/]+" : segment.replaceAll(".", "\\.")));
  return new RegExp(`^${segments.join("/")}$`);
}
