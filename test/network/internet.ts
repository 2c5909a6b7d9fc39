/**
 * An internet in a network namespace of its own, behind a veth pair: servers at public-looking addresses, a printer in 10/8, metadata of
 * a cloud, and DNS. It tells what has arrived at its listeners. For a process that is root of its network namespace (inside.ts).
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { type EventEmitter, once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Addresses of the world. */
export const world = {
  machine: "8.8.1.2",
  router: "8.8.1.1",
  dns: "9.9.9.9",
  a: "9.9.9.10",
  b: "9.9.9.11",
  /** Names below archives.example. */
  archives: "9.9.9.12",
  printer: "10.0.0.5",
  metadata: "169.254.169.254",
} as const;

/** A network without a route. */
export const unroutedAddress = "7.7.7.7";

/** The body of `/bytes/SIZE`, in which every place can be told from its neighbours. */
export function bytesOf(size: number): Buffer {
  const words = Buffer.alloc(Math.ceil(size / 4) * 4);
  for (let at = 0; at < words.length; at += 4) words.writeUInt32LE(Math.imul(at, 2_654_435_761) >>> 0, at);
  return words.subarray(0, size);
}

export type Told =
  | { kind: "up" }
  | { kind: "ready" }
  /** `address:port` of each connection, and names with their types of each question, since the last one. */
  | { kind: "arrived"; connections: string[]; questions: string[]; resets: number };

const ip = (...args: string[]) => execFileSync("ip", args, { stdio: ["ignore", "ignore", "inherit"] });

const certificateIn = (folder: string) => readFileSync(join(folder, "cert.pem"), "utf8");

/** An internet that another process has opened, as the process that it lends it to sees it. */
export interface LentInternet extends AsyncDisposable {
  /** The certificate of a.example, b.example and the archives, which signs itself. */
  readonly certificate: string;
  /** Since the last call. */
  arrived(): Promise<Extract<Told, { kind: "arrived" }>>;
}

/** The internet of the parent process, which calls `lendTo`. */
export function borrowInternet(): LentInternet {
  return {
    certificate: certificateIn(process.env.INTERNET_FOLDER!),
    arrived() {
      process.send!("arrived");
      return told(process, "arrived");
    },
    async [Symbol.asyncDispose]() {
      process.disconnect();
    },
  };
}

export class Internet implements LentInternet {
  readonly certificate: string;
  readonly #servers: ChildProcess;
  readonly #folder: string;

  private constructor(servers: ChildProcess, folder: string) {
    this.#servers = servers;
    this.#folder = folder;
    this.certificate = certificateIn(folder);
  }

  /** For the environment of a process that borrows it. */
  get environment(): { INTERNET_FOLDER: string } {
    return { INTERNET_FOLDER: this.#folder };
  }

  /** Tells a child process what has arrived, when it asks. */
  lendTo(child: ChildProcess): void {
    child.on("message", async () => child.send(await this.arrived()));
  }

  /** `archives`: the folder of archives.ts. */
  static async open(archives = ""): Promise<Internet> {
    const folder = mkdtempSync(join(tmpdir(), "internet-"));
    const files = ["-keyout", join(folder, "key.pem"), "-out", join(folder, "cert.pem")];
    const hosts = ["a.example", "b.example", "*.a.example", "*.archives.example"].map((host) => `DNS:${host}`);
    const names = ["-subj", "/CN=a.example", "-addext", `subjectAltName=${hosts}`];
    const kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    execFileSync("openssl", ["req", ...kind, ...names, ...files], { stdio: "pipe" });
    const program = join(import.meta.dirname, "internet-servers.ts");
    const servers = spawn("unshare", ["--net", process.execPath, program, folder, archives], {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
    });
    await told(servers, "up");
    ip("link", "set", "lo", "up");
    ip("link", "add", "out0", "type", "veth", "peer", "name", "in0", "netns", String(servers.pid));
    ip("address", "add", `${world.machine}/24`, "dev", "out0");
    ip("link", "set", "out0", "up");
    ip("route", "add", "unreachable", `${unroutedAddress}/32`);
    ip("route", "add", "default", "via", world.router);
    servers.send("go");
    await told(servers, "ready");
    return new Internet(servers, folder);
  }

  async arrived(): Promise<Extract<Told, { kind: "arrived" }>> {
    this.#servers.send("arrived");
    return await told(this.#servers, "arrived");
  }

  /** TCP connections of its servers, but those that only wait out their end. */
  connections(): number {
    const [, ...rows] = readFileSync(`/proc/${this.#servers.pid}/net/tcp`, "utf8").trimEnd().split("\n");
    const [timeWait, listen] = ["06", "0A"];
    return rows.filter((row) => ![timeWait, listen].includes(row.trim().split(/\s+/)[3]!)).length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = once(this.#servers, "exit");
    this.#servers.disconnect();
    await ended;
    rmSync(this.#folder, { recursive: true });
  }
}

async function told<K extends Told["kind"]>(servers: EventEmitter, kind: K): Promise<Extract<Told, { kind: K }>> {
  for (;;) {
    const [message] = (await once(servers, "message")) as [Told];
    if (message.kind === kind) return message as Extract<Told, { kind: K }>;
  }
}
