/** The folders of a host without VMs: a template is one file, which says what it is, and stands on nothing. */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ArtifactFolder, ArtifactFolders, ArtifactKind } from "../../src/cluster/artifacts.ts";
import { CapsuleError } from "../../src/wire/errors.ts";
import type { FakeHost } from "./fake-host.ts";

export class FakeFolders implements ArtifactFolders, Disposable {
  readonly #host: FakeHost;
  readonly #folder = mkdtempSync(join(tmpdir(), "capsule-folders-"));
  /** The reason why each check fails. */
  damage: string | undefined;
  /** Templates cannot be used. */
  isOtherMachine = false;
  #works = 0;

  constructor(host: FakeHost) {
    this.#host = host;
    for (const name of ["work", "templates"]) mkdirSync(join(this.#folder, name));
  }

  /** A template's contents, as they were fetched or made. */
  contents(storage: string): string {
    return readFileSync(join(this.#target(storage), "memory"), "utf8");
  }

  async hold(): Promise<Disposable> {
    return { [Symbol.dispose]() {} };
  }

  async find(_kind: ArtifactKind, storage: string): Promise<ArtifactFolder | undefined> {
    if (!this.#host.templates.has(storage)) return undefined;
    const folder = this.#target(storage);
    mkdirSync(folder, { recursive: true });
    const path = join(folder, "memory");
    if (!existsSync(path)) writeFileSync(path, `the memory of ${storage}`);
    return { sha256: null, layers: [], files: [{ name: "memory", path }] };
  }

  async place(_kind: ArtifactKind, storage: string) {
    const target = this.#target(storage);
    rmSync(target, { recursive: true, force: true }); // of a template that the host has removed
    return { work: join(this.#folder, "work", String(++this.#works)), target, [Symbol.dispose]() {} };
  }

  async check(): Promise<void> {
    if (this.damage !== undefined) throw new CapsuleError("agent_error", this.damage);
  }

  async published(_kind: ArtifactKind, storage: string): Promise<void> {
    this.#host.templates.set(storage, { vcpus: 1, memoryMb: 512 });
  }

  async requireUsable(): Promise<void> {
    if (this.isOtherMachine) throw new CapsuleError("conflict", "the template was saved on another machine");
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true });
  }

  #target(storage: string): string {
    return join(this.#folder, "templates", storage);
  }
}
