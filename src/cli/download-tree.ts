/**
 * A tree out of a capsule, as one archive. Its names come from the capsule and are not trusted: each entry lies in a folder
 * that this copy has made or found, a hard link leads to a file of this copy, and links are created last, so that nothing is
 * written through a link or outside of the target.
 */
import { randomBytes } from "node:crypto";
import { chmod, copyFile, link, open, rename, rm, symlink, utimes } from "node:fs/promises";
import { dirname, join } from "node:path";
import { Failure } from "./failures.ts";
import { keptMode, modesOfCopy } from "./modes.ts";
import { onDisk } from "./names.ts";
import type { Progress, Tally } from "./progress.ts";
import { note, printable } from "./screen.ts";
import type { TarMember } from "./tar-reader.ts";

interface Folder {
  mode: number;
  mtimeSec: number;
}

export class TreeReceiver {
  readonly #place: string;
  readonly #progress: Progress;
  readonly #tally: Tally;
  readonly #makeFolder: (path: string) => Promise<void>;
  /** Parents first. */
  readonly #folders = new Map<string, Folder>();
  readonly #files = new Set<string>();
  readonly #links: { to: string; target: string }[] = [];

  constructor(place: string, progress: Progress, tally: Tally, makeFolder: (path: string) => Promise<void>) {
    this.#place = place;
    this.#progress = progress;
    this.#tally = tally;
    this.#makeFolder = makeFolder;
  }

  /** The tree itself is `./`; names are relative to it. */
  async add(member: TarMember): Promise<void> {
    const to = this.#pathOf(member.name);
    if (to !== this.#place && !this.#folders.has(dirname(to)))
      throw new Failure(`the capsule lists ${printable(member.name)}, but not its folder`);
    if (member.kind === "directory") await this.#addFolder(to, member);
    else if (to === this.#place) throw new Failure(`the capsule's archive has ${printable(member.name)} as no folder`);
    else if (member.kind === "symlink") this.#links.push({ to, target: member.target });
    else if (member.kind === "file") await this.#addFile(to, member);
    else if (member.kind === "hardlink") await this.#addHardLink(to, member);
    else note(`capsule cp: ${printable(member.name)} is not a file, folder or link, and is skipped`);
  }

  async end(): Promise<void> {
    for (const { to, target } of this.#links) {
      await rm(onDisk(to), { force: true });
      await symlink(onDisk(target), onDisk(to));
      this.#tally.links++;
    }
    // Last, and children first: a folder may be one that its owner cannot write to or search.
    for (const [path, { mode, mtimeSec }] of [...this.#folders].reverse()) {
      await utimes(onDisk(path), mtimeSec, mtimeSec);
      await chmod(onDisk(path), mode);
    }
  }

  #pathOf(name: string): string {
    const segments = name.split("/").filter((part) => part !== "" && part !== ".");
    if (segments.some((part) => part === ".." || part.includes("\0")))
      throw new Failure(`the capsule's archive has ${printable(JSON.stringify(name))}, which is not in the tree`);
    return join(this.#place, ...segments);
  }

  async #addFolder(to: string, { mode, mtimeSec }: TarMember): Promise<void> {
    await this.#makeFolder(to);
    this.#folders.set(to, { mode: keptMode(mode, true), mtimeSec });
    this.#tally.directories++;
  }

  /** Written to a temporary name, then renamed: a link at `to` is replaced, not followed. */
  async #addFile(to: string, { name, content, size, mode, mtimeSec }: TarMember): Promise<void> {
    this.#progress.begins(name);
    await this.#publish(to, async (half) => {
      const file = await open(half, "wx", modesOfCopy.file);
      try {
        for await (const { offset, bytes } of content) {
          for (let at = 0; at < bytes.length; )
            at += (await file.write(bytes, at, bytes.length - at, offset + at)).bytesWritten;
          this.#progress.moved(bytes.length);
        }
        if ((await file.stat()).size !== size) await file.truncate(size);
        await file.chmod(keptMode(mode, false));
        await file.utimes(mtimeSec, mtimeSec);
      } finally {
        await file.close();
      }
    });
  }

  /** A link, since copies of a file with holes could fill the disk. It has the file's mode and time. */
  async #addHardLink(to: string, { name, target, mode, mtimeSec }: TarMember): Promise<void> {
    const from = this.#pathOf(target);
    if (!this.#files.has(from)) throw new Failure(`the capsule's archive links ${printable(name)} to no file of it`);
    await this.#publish(to, async (half) => {
      try {
        await link(onDisk(from), half);
      } catch (error) {
        if (!hasNoLinks(error)) throw error;
        await copyFile(onDisk(from), half);
        await chmod(half, keptMode(mode, false));
        await utimes(half, mtimeSec, mtimeSec);
      }
      // A rename to another name of the same file does nothing.
      if (this.#files.has(to)) await rm(onDisk(to));
    });
  }

  async #publish(to: string, write: (half: Buffer) => Promise<void>): Promise<void> {
    const half = onDisk(join(dirname(to), `.${randomBytes(6).toString("hex")}.part`));
    try {
      await write(half);
      await rename(half, onDisk(to));
    } catch (error) {
      await rm(half, { force: true });
      throw error;
    }
    this.#files.add(to);
    this.#tally.files++;
  }
}

/** Errors of file systems without hard links, such as FAT. */
function hasNoLinks(error: unknown): boolean {
  return ["EPERM", "ENOTSUP"].includes((error as NodeJS.ErrnoException).code ?? "");
}
