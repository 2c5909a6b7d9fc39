/**
 * gVisor as a baseline: the usual choice for a sandbox without hardware virtualization. A container with busybox only, run by
 * `runsc` with its default configuration, on its fastest platform.
 *
 * The shell that starts runsc reads the clock, so that the cost of spawning from Node is not counted.
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
/** A KVM that cannot run Debian's kernel hangs gVisor too, so it is tried only if the server uses KVM. */
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

  /** Milliseconds to create a container, run /bin/true in it, and remove it. */
  async run(): Promise<number> {
    return this.#timed("run", "--bundle", join(this.#folder, "true"), newId());
  }

  /** Runs `work` with an idle container. */
  async withIdle<T>(work: (container: string) => Promise<T>): Promise<T> {
    const container = newId();
    await this.#timed("run", "--bundle", join(this.#folder, "idle"), "--detach", container);
    try {
      return await work(container);
    } finally {
      await this.#runsc("delete", "--force", container).catch(() => {}); // it has already ended after a checkpoint
    }
  }

  /** Milliseconds of /bin/true in a running container. */
  exec(container: string): Promise<number> {
    return this.#timed("exec", container, "/bin/true");
  }

  /** Milliseconds until the container's state is synced to disk. Ends the container. */
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
    // A process group of its own, so that a hanging runsc is killed with its children.
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

/** gVisor on its fastest platform, or a sentence that says why it cannot run here. */
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

/** Two bundles on one root, with the configuration of `runsc spec`. */
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
