/** Short texts that hosts of a cluster give to clients and read from them: signed under a key that all have, for one scope. */
import { createHmac, timingSafeEqual } from "node:crypto";

const form = /^([A-Za-z0-9_-]{1,400})\.([A-Za-z0-9_-]{43})$/;

export interface SignedTextOptions {
  key: Uint8Array;
  /** The beginning of each text. */
  prefix: string;
  /** Separates texts of different kinds under one key. */
  kind: string;
}

export class SignedTexts {
  readonly #options: SignedTextOptions;

  constructor(options: SignedTextOptions) {
    this.#options = options;
  }

  make(fields: readonly (string | number)[], scope: string): string {
    const payload = Buffer.from(JSON.stringify(fields)).toString("base64url");
    return `${this.#options.prefix}${payload}.${this.#sign(payload, scope).toString("base64url")}`;
  }

  /** The fields; undefined: it is none of these texts, or of another scope. */
  read(text: string, scope: string): (string | number)[] | undefined {
    const { prefix } = this.#options;
    if (!text.startsWith(prefix)) return undefined;
    const [, payload = "", signature = ""] = form.exec(text.slice(prefix.length)) ?? [];
    const given = Buffer.from(signature, "base64url");
    if (payload === "" || !timingSafeEqual(given, this.#sign(payload, scope))) return undefined;
    return JSON.parse(Buffer.from(payload, "base64url").toString());
  }

  #sign(payload: string, scope: string): Buffer {
    const { key, kind } = this.#options;
    return createHmac("sha256", key)
      .update(JSON.stringify([kind, payload, scope]))
      .digest();
  }
}
