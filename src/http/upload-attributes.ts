/** Fields of an upload's form about its file, which may stand before or behind the content. */
import type { FileAttributes } from "../agent/agent.ts";
import { CapsuleError } from "../wire/errors.ts";
import { accountMaxLength, modePattern } from "../wire/file.ts";
import { malformed } from "./multipart.ts";

const readers = {
  parents: (text: string): Partial<FileAttributes> => {
    if (text !== "true" && text !== "false") throw bad("parents", "parents must be true or false");
    return { parents: text === "true" };
  },
  mode: (text: string): Partial<FileAttributes> => {
    if (!new RegExp(modePattern).test(text)) throw bad("mode", "mode must be three or four octal digits");
    return { mode: Number.parseInt(text, 8) };
  },
  owner: (text: string): Partial<FileAttributes> => {
    if (text === "" || text.length > accountMaxLength || text.includes("\0"))
      throw bad("owner", `owner must be the name of a user or a number, of at most ${accountMaxLength} characters`);
    return { owner: text };
  },
};

export class AttributeFields {
  readonly #seen = new Set<string>();
  #attributes: FileAttributes | undefined;
  #isNew = false;

  has(name: string): name is keyof typeof readers {
    return Object.hasOwn(readers, name);
  }

  /** Throws invalid_request. */
  set(name: keyof typeof readers, text: string): void {
    if (this.#seen.has(name)) throw malformed(`it has two fields ${name}`);
    this.#seen.add(name);
    this.#attributes = { ...this.#attributes, ...readers[name](text) };
    this.#isNew = true;
  }

  /** All of them, once some have come since the last call. */
  takeNew(): FileAttributes | undefined {
    const isNew = this.#isNew;
    this.#isNew = false;
    return isNew ? this.#attributes : undefined;
  }
}

function bad(field: string, message: string): CapsuleError {
  return new CapsuleError("invalid_request", message, { details: { field } });
}
