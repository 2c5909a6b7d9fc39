/** Random values for a JSON schema of the OpenAPI document: most of them valid, some at a limit, some invalid. */
import type { Random } from "../conformance/random.ts";

export interface Schema {
  $ref?: string;
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  anyOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  additionalProperties?: Schema | boolean;
  minimum?: number;
  maximum?: number;
}

/** Useful values of a field, by its name. Without them most requests would fail at the first check. */
export type Pools = Record<string, readonly unknown[]>;

export function pick<T>(random: Random, from: readonly T[]): T {
  return from[random.below(from.length)]!;
}

export function chance(random: Random, percent: number): boolean {
  return random.below(100) < percent;
}

export const nastyTexts = [
  "",
  " ",
  "a",
  "0",
  "-1",
  "ü",
  "💥",
  "\u0000",
  "a\u0000b",
  "\r\nX-Injected: 1",
  "../../../etc/passwd",
  "__proto__",
  "constructor",
  "' OR 1=1 --",
  "%00%ff%2e%2e",
  "$(reboot)",
  "\ud800",
  "a".repeat(65),
  "x".repeat(5_000),
];

const nastyNumbers = [0, -0, -1, 1, 1.5, 1e21, 2 ** 31, 2 ** 32, 2 ** 53, -(2 ** 63), 5e-324, 1.7e308];

export class Values {
  readonly #schemas: Record<string, Schema>;
  readonly #random: Random;
  readonly #pools: Pools;

  constructor(schemas: Record<string, Schema>, random: Random, pools: Pools) {
    this.#schemas = schemas;
    this.#random = random;
    this.#pools = pools;
  }

  /** A value for the schema; an invalid one with a probability of 4 %. */
  of(schema: Schema, name = ""): unknown {
    const random = this.#random;
    const pool = this.#pools[name];
    // Queries only use the pool, because a random valid wait could take minutes.
    if (pool !== undefined && (name.startsWith("?") || chance(random, 90))) return pick(random, pool);
    return chance(random, 4) ? this.#wrong() : this.#right(schema, name);
  }

  #right(schema: Schema, name: string): unknown {
    const random = this.#random;
    if (schema.$ref !== undefined) return this.#right(this.#schemas[schema.$ref.split("/").at(-1)!] ?? {}, name);
    if (schema.const !== undefined) return schema.const;
    if (schema.enum !== undefined) return pick(random, schema.enum);
    if (schema.anyOf !== undefined) return this.of(pick(random, schema.anyOf), name);
    switch ([schema.type].flat()[0]) {
      case "object":
        return this.#object(schema);
      case "array":
        return Array.from({ length: random.size(chance(random, 2) ? 2_000 : 4) }, () =>
          this.of(schema.items ?? {}, name),
        );
      case "integer":
      case "number":
        return this.#number(schema);
      case "boolean":
        return chance(random, 50);
      case "string":
        return pick(random, nastyTexts);
      default:
        return this.#wrong();
    }
  }

  #object({ properties = {}, required = [], additionalProperties }: Schema): Record<string, unknown> {
    const random = this.#random;
    const object: Record<string, unknown> = {};
    for (const [name, schema] of Object.entries(properties)) {
      if (chance(random, required.includes(name) ? 97 : 50)) object[name] = this.of(schema, name);
    }
    if (typeof additionalProperties === "object") object[pick(random, nastyTexts)] = this.of(additionalProperties);
    if (chance(random, 5)) object[pick(random, nastyTexts)] = this.#wrong();
    return object;
  }

  #number({ minimum = 0, maximum = 100 }: Schema): number {
    const random = this.#random;
    return pick(random, [
      minimum,
      maximum,
      minimum - 1,
      maximum + 1,
      minimum + random.below(10),
      pick(random, nastyNumbers),
    ]);
  }

  #wrong(): unknown {
    const random = this.#random;
    return pick(random, [
      null,
      true,
      [],
      {},
      [[]],
      { a: { b: {} } },
      pick(random, nastyNumbers),
      pick(random, nastyTexts),
      Array.from({ length: 100 }, () => null),
    ]);
  }
}
