/**
 * The builds of QEMU in the data folder. A VM is restored by the build that saved it, so the installed QEMU is copied before it
 * runs a VM, and a copy stays as long as a capsule, template or base was made by it (docs/adr/0024). An upgrade of the
 * installed one is noticed when the next VM is made.
 */
import { lstat, readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { findProgram } from "../../vmm/jail/program-files.ts";
import { installedProgram, type QemuProgram } from "../../vmm/qemu-program.ts";
import type { Machine } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { readJson, writeJson } from "../disk/files.ts";
import type { Paths } from "../disk/paths.ts";
import { buildPattern, type KeptBuild, keepBuild, openBuild, unfinishedPattern } from "./build-folder.ts";
import { fingerprintOf, sourcesOf } from "./build-sources.ts";

export interface QemuBuildsOptions {
  paths: Pick<Paths, "qemuBuilds" | "discard">;
  /** The installed program, looked up in PATH unless absolute. */
  program: string;
  /** Throws for a version that may not be used. */
  accept: (version: string) => void;
  /** Called when the installed program could not be kept or not be taken into use, or a kept one is damaged. */
  onProblem: (what: string, error: unknown) => void;
}

/** The installed program. */
interface Installed {
  /** Its copy, or itself when it could not be copied. */
  program: QemuProgram;
  /** Its files and their fingerprint when they were copied. */
  paths: string[];
  fingerprint: string;
  /** Why there is no copy. */
  failure?: unknown;
}

/** Lets a start do without reading the installed files. */
interface SourcesFile {
  program: string;
  build: string;
  paths: string[];
  fingerprint: string;
}

const sourcesName = "sources.json";
/** After an installed program could not be taken into use. */
const retryMs = 30_000;
const attempts = 3;

type Saved = Pick<Machine, "qemu" | "qemuBuild">;

export class QemuBuilds {
  readonly #options: QemuBuildsOptions;
  readonly #kept = new Map<string, KeptBuild>();
  #installed!: Installed;
  #renewing: Promise<void> | undefined;
  #keeping: Promise<void> | undefined;
  #refused = { fingerprint: "", atMs: Number.NEGATIVE_INFINITY };

  /** Throws CapsuleError when the installed program is missing, does not run, or is not accepted. */
  static async open(options: QemuBuildsOptions): Promise<QemuBuilds> {
    const builds = new QemuBuilds(options);
    await builds.#load();
    builds.#installed = (await builds.#unchanged()) ?? (await builds.#install());
    return builds;
  }

  private constructor(options: QemuBuildsOptions) {
    this.#options = options;
  }

  /** The program of new VMs. */
  get current(): QemuProgram {
    return this.#installed.program;
  }

  /** The program that restores a saved VM: the one that saved it, or if that is lost, another one of the same version. */
  find({ qemu, qemuBuild }: Saved): QemuProgram | undefined {
    const exact = qemuBuild === undefined ? undefined : this.#kept.get(qemuBuild);
    if (exact !== undefined) return exact;
    return this.current.version === qemu ? this.current : this.#newestOf(qemu);
  }

  /**
   * Takes another installed program into use. If that fails, the one in use stays when it is a copy; else an error is thrown,
   * since an upgrade has overwritten it.
   */
  async refresh(): Promise<void> {
    const fingerprint = fingerprintOf(this.#installed.paths);
    if (fingerprint === this.#installed.fingerprint) return;
    const { fingerprint: refused, atMs } = this.#refused;
    const isRefused = (fingerprint ?? "missing") === refused && performance.now() - atMs < retryMs;
    if (!isRefused) {
      this.#renewing ??= this.#renew(fingerprint).finally(() => {
        this.#renewing = undefined;
      });
      await this.#renewing;
    }
    if (this.current.build === undefined && fingerprintOf(this.#installed.paths) !== this.#installed.fingerprint) {
      throw new CapsuleError("internal_error", `${this.#options.program} was replaced and cannot be used`);
    }
  }

  /**
   * Throws when a VM of this machine could not be restored after it was saved: CapsuleError("no_space") when its program does
   * not fit on the disk, CapsuleError("conflict") when it is gone.
   */
  async requireKept(machine: Saved, what: string): Promise<void> {
    if (this.find(machine)?.build !== undefined) return;
    await this.refresh();
    if (this.#installed.failure !== undefined) {
      this.#keeping ??= this.#keepInstalled().finally(() => {
        this.#keeping = undefined;
      });
      await this.#keeping;
    }
    if (this.find(machine) !== undefined) return;
    const build = machine.qemuBuild === undefined ? "" : ` (build ${machine.qemuBuild.slice(0, 12)})`;
    throw new CapsuleError(
      "conflict",
      `${what} runs in QEMU ${machine.qemu}${build}, which this machine no longer has`,
    );
  }

  /** Removes the builds that none of these machines needs. A folder that is a link belongs to another data folder. */
  async trim(saved: readonly Saved[]): Promise<string[]> {
    const { paths } = this.#options;
    if ((await lstat(paths.qemuBuilds)).isSymbolicLink()) return [];
    const needed = new Set([this.current, ...saved.map((machine) => this.find(machine))].map((found) => found?.build));
    const removed = [...this.#kept.keys()].filter((build) => !needed.has(build));
    for (const build of removed) {
      this.#kept.delete(build);
      await paths.discard(join(paths.qemuBuilds, build));
    }
    return removed;
  }

  #newestOf(version: string): KeptBuild | undefined {
    const same = [...this.#kept.values()].filter((build) => build.version === version);
    return same.sort((a, b) => (a.keptAt < b.keptAt ? 1 : -1))[0];
  }

  async #load(): Promise<void> {
    const { paths, onProblem } = this.#options;
    const isOwn = !(await lstat(paths.qemuBuilds)).isSymbolicLink();
    for (const name of await readdir(paths.qemuBuilds)) {
      const folder = join(paths.qemuBuilds, name);
      if (isOwn && unfinishedPattern.test(name)) await rm(folder, { recursive: true, force: true });
      if (!buildPattern.test(name)) continue;
      const build = await openBuild(paths.qemuBuilds, name).catch((error: unknown) => {
        onProblem("a kept QEMU is damaged", error);
      });
      if (build) this.#kept.set(name, build);
    }
  }

  /** The installed program, if its files are those that a build was copied from. */
  async #unchanged(): Promise<Installed | undefined> {
    const { paths, program, accept } = this.#options;
    const file = await readJson<SourcesFile>(join(paths.qemuBuilds, sourcesName)).catch(() => undefined);
    if (file === undefined || file.program !== findProgram(program)) return undefined;
    const kept = this.#kept.get(file.build);
    if (kept === undefined || fingerprintOf(file.paths) !== file.fingerprint) return undefined;
    accept(kept.version);
    return { program: kept, paths: file.paths, fingerprint: file.fingerprint };
  }

  async #renew(fingerprint: string | undefined): Promise<void> {
    try {
      const isSafe = this.current.build !== undefined;
      const installed = await this.#install();
      if (isSafe && installed.failure !== undefined) throw installed.failure;
      this.#installed = installed;
    } catch (error) {
      this.#refused = { fingerprint: fingerprint ?? "missing", atMs: performance.now() };
      this.#options.onProblem("the installed QEMU was replaced, and the new one cannot be used", error);
    }
  }

  async #install(): Promise<Installed> {
    const { program: name, accept, onProblem } = this.#options;
    const path = findProgram(name);
    if (path === undefined) throw new CapsuleError("internal_error", `${name} is not installed`);
    try {
      const installed = await this.#keep(path);
      accept(installed.program.version);
      return installed;
    } catch (failure) {
      const fingerprint = fingerprintOf([path]) ?? "";
      const program = await installedProgram(name);
      accept(program.version);
      onProblem("the installed QEMU cannot be kept: what it saves is lost with its next upgrade", failure);
      return { program, paths: [path], fingerprint, failure };
    }
  }

  /** Tries again, since there may be more space now. */
  async #keepInstalled(): Promise<void> {
    try {
      this.#installed = await this.#keep(this.#installed.program.command[0]);
    } catch (error) {
      if (error instanceof CapsuleError && error.code === "no_space") throw error;
    }
  }

  /** Again when files are replaced meanwhile. */
  async #keep(path: string): Promise<Installed> {
    const { qemuBuilds } = this.#options.paths;
    for (let attempt = 1; ; attempt++) {
      const sources = await sourcesOf(path);
      const paths = [path, ...sources.map((source) => source.path)];
      const fingerprint = fingerprintOf(paths);
      const build = await keepBuild(qemuBuilds, sources);
      this.#kept.set(build.build, build);
      if (fingerprint !== undefined && fingerprintOf(paths) === fingerprint) {
        const file: SourcesFile = { program: path, build: build.build, paths, fingerprint };
        await writeJson(join(qemuBuilds, sourcesName), file, { durable: false });
        return { program: build, paths, fingerprint };
      }
      if (attempt === attempts) throw new Error(`${path} keeps changing`);
    }
  }
}
