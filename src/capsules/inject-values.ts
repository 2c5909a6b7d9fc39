/** The values of the headers that requests of capsules get. The database has each sealed; a relay is given them open. */
import type { InjectRows } from "../db/inject-rows.ts";
import { type InjectRule, type InjectValue, nothingStored, type OpenInjectRule } from "../network/inject.ts";
import type { SecretKey } from "../secret.ts";

export class InjectValues {
  readonly #rows: InjectRows;
  readonly #secret: SecretKey;

  constructor(rows: InjectRows, secret: SecretKey) {
    this.#rows = rows;
    this.#secret = secret;
  }

  /** `id` undefined: of a new capsule. Throws CapsuleError("invalid_request") where a value stays and none is stored. */
  require(id: string | undefined, values: readonly InjectValue[]): void {
    const stored = id === undefined ? new Map() : this.#stored(id);
    const missing = values.find((each) => each.value === null && !stored.has(keyOf(each)));
    if (missing !== undefined) throw nothingStored(missing);
  }

  /** Replaces what is stored. Call it in the transaction that writes the rules. Throws as `require`. */
  keep(id: string, values: readonly InjectValue[]): void {
    this.require(id, values); // another change may have removed one meanwhile
    const stored = this.#stored(id);
    if (values.length === 0 && stored.size === 0) return;
    const kept = values.map((each) => {
      const { host, name, value } = each;
      const sealed = value === null ? stored.get(keyOf(each)) : this.#seal(id, host, name, value);
      return [keyOf(each), sealed];
    });
    this.#rows.set(id, kept.length === 0 ? null : JSON.stringify(Object.fromEntries(kept)));
  }

  /** With null for each value that cannot be decrypted. */
  open(id: string, rules: readonly InjectRule[]): OpenInjectRule[] {
    if (rules.length === 0) return [];
    const stored = this.#stored(id);
    return rules.map(({ host, headers }) => {
      const open = headers.map((name) => {
        const sealed = stored.get(keyOf({ host, name }));
        const text = sealed && this.#secret.open(placeOf(id, host, name), Buffer.from(sealed, "base64"));
        return [name, text ?? null];
      });
      return { host, headers: Object.fromEntries(open) as Record<string, string | null> };
    });
  }

  #seal(id: string, host: string, name: string, value: string): string {
    return Buffer.from(this.#secret.seal(placeOf(id, host, name), value)).toString("base64");
  }

  /** Empty where the column cannot be read: its values are then as if they could not be decrypted. */
  #stored(id: string): Map<string, string> {
    try {
      const sealed = JSON.parse(this.#rows.get(id) ?? "{}") as Record<string, unknown>;
      return new Map(Object.entries(sealed).filter((pair): pair is [string, string] => typeof pair[1] === "string"));
    } catch {
      return new Map();
    }
  }
}

/** A host and the name of a header have no space. */
function keyOf({ host, name }: Pick<InjectValue, "host" | "name">): string {
  return `${host} ${name.toLowerCase()}`;
}

function placeOf(id: string, host: string, name: string): string {
  return `inject of ${id}: ${keyOf({ host, name })}`;
}
