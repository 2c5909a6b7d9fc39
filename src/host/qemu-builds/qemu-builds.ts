/**
 * The builds of QEMU in the data folder. A VM is restored by the build that saved it, so the installed QEMU is copied before it
 * runs a VM, and a copy stays as long as a capsule, template or base was made by it (docs/adr/0024). An upgrade of the
 * installed one is noticed when the next VM is made.
 */
import { lstat } from "node:fs/promises";
import { join } from "node:path";
import type { QemuProgram } from "../../vmm/machine/qemu-program.ts";
import type { Machine } from "../../vmm/vmm.ts";
import { CapsuleError } from "../../wire/errors.ts";
import { damageOf, type KeptBuild, openBuild } from "./build-folder.ts";
import { fingerprintOf } from "./build-sources.ts";
import {
  type Installed,
  install,
  type Kept,
  keep,
  loadKept,
  type QemuBuildsOptions,
  unchanged,
} from "./installed-qemu.ts";

/** After an installed program could not be taken into use. */
const retryMs = 30_000;

type Saved = Pick<Machine, "qemu" | "qemuBuild">;

export class QemuBuilds {
  readonly #options: QemuBuildsOptions;
  readonly #kept: Kept;
  #installed: Installed;
  #renewing: Promise<void> | undefined;
  #keeping: Promise<void> | undefined;
  /** By program that was used in this process: what is damaged in its files. */
  readonly #damages = new Map<QemuProgram, Promise<string | undefined>>();
  #refused = { fingerprint: "", atMs: Number.NEGATIVE_INFINITY };

  /** Throws CapsuleError when the installed program is missing, does not run, or is not accepted. */
  static async open(options: QemuBuildsOptions): Promise<QemuBuilds> {
    const kept = await loadKept(options);
    return new QemuBuilds(options, kept, (await unchanged(options, kept)) ?? (await install(options, kept)));
  }

  private constructor(options: QemuBuildsOptions, kept: Kept, installed: Installed) {
    this.#options = options;
    this.#kept = kept;
    this.#installed = installed;
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
   * As `find`. The bytes of a copy are compared with its hashes before its first use, since a start looks at their sizes only.
   * A damaged copy of the installed program is made anew. Throws CapsuleError("internal_error") for another damaged one.
   */
  async findSound(saved: Saved): Promise<QemuProgram | undefined> {
    const program = this.find(saved);
    const damage = await this.#damageOf(program);
    if (damage === undefined) return program;
    if (program === this.current) await this.#renewOnce(fingerprintOf(this.#installed.paths));
    const renewed = this.find(saved);
    if (renewed !== program && (await this.#damageOf(renewed)) === undefined) return renewed;
    throw new CapsuleError(
      "internal_error",
      `the copy of QEMU ${saved.qemu} that it needs is damaged, and can be put back from a backup: ${damage}`,
    );
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
    if (!isRefused) await this.#renewOnce(fingerprint);
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

  /** Takes a build that was put into the data folder into use. Throws an Error when it is not there, or is damaged. */
  async take(build: string): Promise<void> {
    const found = await openBuild(this.#options.paths.qemuBuilds, build);
    if (found === undefined) throw new Error(`there is no QEMU build ${build}`);
    if (!this.#kept.has(build)) this.#kept.set(build, found);
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

  /** Reads a copy once in the life of this process, and again when it could not be read. */
  #damageOf(program: QemuProgram | undefined): Promise<string | undefined> {
    if (program?.build === undefined) return Promise.resolve(undefined);
    let damage = this.#damages.get(program);
    if (damage === undefined) {
      const { paths, onProblem } = this.#options;
      damage = damageOf(paths.qemuBuilds, program.build);
      this.#damages.set(program, damage);
      damage.then(
        (found) => found !== undefined && onProblem("a kept QEMU is damaged", new Error(found)),
        () => this.#damages.delete(program),
      );
    }
    return damage;
  }

  /** At once for all callers. */
  #renewOnce(fingerprint: string | undefined): Promise<void> {
    this.#renewing ??= this.#renew(fingerprint).finally(() => {
      this.#renewing = undefined;
    });
    return this.#renewing;
  }

  async #renew(fingerprint: string | undefined): Promise<void> {
    try {
      const isSafe = this.current.build !== undefined;
      const installed = await install(this.#options, this.#kept);
      if (isSafe && installed.failure !== undefined) throw installed.failure;
      this.#installed = installed;
    } catch (error) {
      this.#refused = { fingerprint: fingerprint ?? "missing", atMs: performance.now() };
      this.#options.onProblem("the installed QEMU was replaced, and the new one cannot be used", error);
    }
  }

  /** Tries again, since there may be more space now. */
  async #keepInstalled(): Promise<void> {
    try {
      this.#installed = await keep(this.#options, this.#kept, this.#installed.program.command[0]);
    } catch (error) {
      if (error instanceof CapsuleError && error.code === "no_space") throw error;
    }
  }
}
