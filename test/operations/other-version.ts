/** This repository's code under another version number, for upgrades. */
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const repository = resolve(import.meta.dirname, "../..");

export class OtherVersion implements AsyncDisposable {
  readonly #folder: string;

  private constructor(folder: string) {
    this.#folder = folder;
  }

  static async make(version: string): Promise<OtherVersion> {
    const folder = await mkdtemp(join(tmpdir(), "capsule-next-"));
    await cp(join(repository, "src"), join(folder, "src"), { recursive: true });
    await symlink(join(repository, "node_modules"), join(folder, "node_modules"));
    const about = JSON.parse(await readFile(join(repository, "package.json"), "utf8"));
    await writeFile(join(folder, "package.json"), JSON.stringify({ ...about, version }));
    return new OtherVersion(folder);
  }

  /** For `start` of a server. */
  get program(): string {
    return join(this.#folder, "src/main.ts");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#folder, { recursive: true });
  }
}
