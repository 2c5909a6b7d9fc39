/**
 * gVisor as a yardstick: what people pick for a sandbox where there is no hardware virtualization. A container of nothing
 * but busybox, run by `runsc` with its own defaults, on the platform that is the fastest here.
 *
 * The clock is read by the shell that starts runsc, so what it costs this process to start a program is not counted.
 */
import { execFile, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { copyFile, mkdir, mkdtemp, open, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { repeat, summarize, timed } from "./statistics.ts";

const execute = promisify(execFile);
/** KVM that does not run a stock kernel hangs gVisor too, so it is tried only where we use it ourselves. */
const platforms = { tcg: ["systrap", "ptrace"], kvm: ["kvm", "systrap", "ptrace"] };
const trials = 5;
const deadlineMs = 20_000;
const busybox = "/usr/bin/busybox";
const stopwatch = 'a=$EPOCHREALTIME; "$@" </dev/null >"$0" 2>&1 || exit; echo $a $EPOCHREALTIME';

export class Runsc implements AsyncDisposable {
  readonly #folder: string;
  readonly platform: string;

  constructor(folder: string, platform: string) {
    this.#folder = folder;
    this.platform = platform;
  }

  get name(): string {
    return `runsc (${this.platform})`;
  }

  /** Milliseconds of a container that runs /bin/true, from nothing to nothing. */
  async run(): Promise<number> {
    return this.#timed("run", "--bundle", join(this.#folder, "true"), newId());
  }

  /** A container in which nothing happens, while `work` goes on. */
  async withIdle<T>(work: (container: string) => Promise<T>): Promise<T> {
    const container = newId();
    await this.#timed("run", "--bundle", join(this.#folder, "idle"), "--detach", container);
    try {
      return await work(container);
    } finally {
      await this.#runsc("delete", "--force", container).catch(() => {}); // after a checkpoint it has ended
    }
  }

  /** Milliseconds of /bin/true in a container that runs. */
  exec(container: string): Promise<number> {
    return this.#timed("exec", container, "/bin/true");
  }

  /** Milliseconds until the container's state is on disk; the container has ended then. */
  async checkpoint(container: string): Promise<number> {
    const image = join(this.#folder, `image-${container}`);
    try {
      const writtenMs = await this.#timed("checkpoint", `--image-path=${image}`, container);
      return writtenMs + (await timed(() => syncAll(image)));
    } finally {
      await rm(image, { recursive: true, force: true });
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const { stdout } = await this.#runsc("list", "--quiet");
    for (const container of stdout.split("\n").filter(Boolean)) await this.#runsc("delete", "--force", container);
    await rm(this.#folder, { recursive: true, force: true });
  }

  async #timed(...args: string[]): Promise<number> {
    const said = join(this.#folder, "said");
    const command = ["-c", stopwatch, said, "runsc", ...this.#flags, ...args];
    // A group of its own: what hangs is ended together with what it has started.
    const child = spawn("bash", command, { detached: true, stdio: ["ignore", "pipe", "ignore"] });
    const timer = setTimeout(() => process.kill(-child.pid!, "SIGKILL"), deadlineMs);
    let times = "";
    child.stdout.setEncoding("utf8").on("data", (chunk) => {
      times += chunk;
    });
    const [status] = await once(child, "close");
    clearTimeout(timer);
    if (status !== 0) throw new Error(`runsc ${args[0]} failed: ${(await readFile(said, "utf8")).trim()}`);
    const [began, ended] = times.split(" ").map(Number) as [number, number];
    return (ended - began) * 1_000;
  }

  #runsc(...args: string[]) {
    return execute("runsc", [...this.#flags, ...args], { timeout: deadlineMs });
  }

  get #flags(): string[] {
    return ["--root", join(this.#folder, "state"), `--platform=${this.platform}`, "--network=none", "--ignore-cgroups"];
  }
}

/** On its fastest platform; a sentence instead when it is not here or does not run. */
export async function openRunsc(accelerator: "kvm" | "tcg"): Promise<Runsc | string> {
  if (!(await isInstalled("runsc"))) return "runsc is not installed";
  if (!(await isInstalled(busybox))) return "busybox-static is not installed";
  const folder = await mkdtemp(join(tmpdir(), "capsule-runsc-"));
  await makeBundles(folder);
  let best: { runsc: Runsc; p50: number } | undefined;
  let why: unknown;
  for (const platform of platforms[accelerator]) {
    const runsc = new Runsc(folder, platform);
    try {
      const { p50 } = summarize(await repeat(trials, () => runsc.run()));
      if (best === undefined || p50 < best.p50) best = { runsc, p50 };
    } catch (error) {
      why = error;
    }
  }
  if (best !== undefined) return best.runsc;
  await rm(folder, { recursive: true, force: true });
  return why instanceof Error ? why.message : String(why);
}

async function isInstalled(program: string): Promise<boolean> {
  return execute("which", [program]).then(
    () => true,
    () => false,
  );
}

/** Two bundles on one root, with the configuration that runsc itself proposes. */
async function makeBundles(folder: string): Promise<void> {
  const root = join(folder, "root");
  await mkdir(join(root, "bin"), { recursive: true });
  await copyFile(busybox, join(root, "bin/busybox"));
  for (const applet of ["true", "sleep"]) await symlink("busybox", join(root, "bin", applet));
  for (const [name, args] of [["true", ["/bin/true"]] as const, ["idle", ["/bin/sleep", "1000000"]] as const]) {
    const bundle = join(folder, name);
    await mkdir(bundle);
    await execute("runsc", ["spec", "--bundle", bundle, "--", ...args]);
    const path = join(bundle, "config.json");
    const config = JSON.parse(await readFile(path, "utf8")) as { root: { path: string } };
    config.root.path = root;
    await writeFile(path, JSON.stringify(config));
  }
}

async function syncAll(folder: string): Promise<void> {
  for (const path of [...(await readdir(folder)).map((name) => join(folder, name)), folder]) {
    await using file = await open(path, "r");
    await file.sync();
  }
}

function newId(): string {
  return `bench-${randomBytes(6).toString("hex")}`;
}
