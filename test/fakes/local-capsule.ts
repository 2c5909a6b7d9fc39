/** A capsule of the SDK that is a folder of this machine: its files are the folder's, its commands run here. */
import { spawnSync } from "node:child_process";
import { lstatSync, readdirSync, readlinkSync } from "node:fs";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { onDisk } from "../../src/cli/names.ts";
import { permissionsOf } from "../../src/http/file-entry.ts";
import { type Capsule, type Client, type FileEntry, nameFromBytes, ServiceError } from "../../src/sdk/sdk.ts";

type Content = string | AsyncIterable<Uint8Array | string>;

const types: Record<string, FileEntry["type"]> = { d: "directory", l: "symlink" };

export class LocalCapsule {
  readonly id = "cl-0123456789abcdefghijklmno";
  readonly name = "web";
  /** Called with each chunk of a file that is written or read, before it is passed on. */
  onChunk: (path: string) => Promise<void> = async () => {};
  /** Listed besides what is there. */
  readonly madeUp: FileEntry[] = [];
  takesArchives = false;

  readonly files = {
    stat: async (path: string) => this.#entries(path, 0)[0],
    list: async (path: string, { depth = 1 }) => [...this.#entries(path, depth).slice(1), ...this.madeUp],
    mkdir: async (path: string) => {
      await mkdir(onDisk(path), { recursive: true, mode: 0o755 });
    },
    write: async (path: string, content: Content) => {
      const isNew = this.#entries(path, 0).length === 0;
      const chunks: Buffer[] = [];
      for await (const chunk of typeof content === "string" ? [] : content) {
        await this.onChunk(path);
        chunks.push(Buffer.from(chunk));
      }
      await writeFile(onDisk(path), Buffer.concat(chunks));
      if (isNew) await chmod(onDisk(path), 0o644);
    },
    /** As of an agent of an earlier release, unless `takesArchives`. */
    extract: async (path: string, archive: AsyncIterable<Uint8Array>) => {
      if (!this.takesArchives) throw new ServiceError("conflict", "the capsule's agent has no such verb");
      const chunks: Uint8Array[] = [];
      for await (const chunk of archive) {
        await this.onChunk(path);
        chunks.push(chunk);
      }
      const tar = ["-xpf", "-", "-C", path];
      const { status, stderr } = spawnSync("tar", tar, { input: Buffer.concat(chunks), encoding: "utf8" });
      if (status !== 0) throw new Error(stderr);
    },
    archive: async (path: string) => {
      if (!this.takesArchives) throw new ServiceError("conflict", "the capsule's agent has no such verb");
      return this.#archive(path);
    },
    readStream: async (path: string) => this.#read(path),
  };

  /** As the command line takes it. */
  static make(takesArchives = false): { capsule: Capsule; local: LocalCapsule } {
    const local = new LocalCapsule();
    local.takesArchives = takesArchives;
    return { capsule: local as unknown as Capsule, local };
  }

  /** A service that has this capsule alone, as `capsule cp` asks it. */
  client(): Client {
    const capsule = this as unknown as Capsule;
    const list = async ({ name = this.name } = {}) => (name === this.name ? [capsule] : []);
    return { list, connect: async () => capsule, limits: async () => ({ listDepthMax: 9 }) } as unknown as Client;
  }

  async exec(cmd: string, args: string[]) {
    const { status, stdout, stderr } = spawnSync(cmd, args, { encoding: "utf8" });
    return { exitCode: status, stdout, stderr };
  }

  /** Members that the guest adds to its archives. */
  madeUpArchive: Buffer | undefined;

  async *#archive(path: string): AsyncGenerator<Uint8Array> {
    const { stdout } = spawnSync("tar", ["-cf", "-", "-C", path, "."]);
    const bytes = this.madeUpArchive ?? stdout;
    for (let at = 0; at < bytes.length; at += 512) {
      await this.onChunk(path);
      yield bytes.subarray(at, at + 512);
    }
  }

  async *#read(path: string): AsyncGenerator<Uint8Array> {
    await this.onChunk(path);
    yield await readFile(onDisk(path));
  }

  /** The path itself first, then what is below it. */
  #entries(path: string, depth: number): FileEntry[] {
    const found = lstatSync(onDisk(path), { throwIfNoEntry: false });
    if (found === undefined) return [];
    const symlinkTarget = found.isSymbolicLink() ? nameFromBytes(readlinkSync(onDisk(path), "buffer")) : null;
    const entry = entryOf(path, permissionsOf(found.mode), { size: found.size, symlinkTarget });
    if (!found.isDirectory() || depth === 0) return [entry];
    const names = readdirSync(onDisk(path), { encoding: "buffer" }).map(nameFromBytes).sort();
    return [entry, ...names.flatMap((name) => this.#entries(join(path, name), depth - 1))];
  }
}

export function entryOf(path: string, permissions: string, more: Partial<FileEntry> = {}): FileEntry {
  const type = types[permissions.charAt(0)] ?? "file";
  const common = { owner: "root", group: "root", modifiedAt: 0, size: 0, symlinkTarget: null };
  return { name: path.split("/").at(-1) ?? "", path, type, permissions, ...common, ...more };
}
