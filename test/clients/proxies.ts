/** Reverse proxies as docs/operations/expose.md configures them: its examples as they stand, but for ports, TLS and time-outs. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { lastingPort } from "../lasting-port.ts";
import { waitFor } from "../wait-for.ts";
import type { KnownClient } from "./known-clients.ts";

const operations = resolve(import.meta.dirname, "../../docs/operations/expose.md");
const startDeadlineMs = 60_000;

export interface KnownProxy extends Pick<KnownClient, "name" | "probe" | "package" | "isUsual"> {
  /** It resets a client that it has passed a refusal to while the body was still coming: docs/CLIENTS.md says so. */
  losesRefusals: boolean;
  /** It does not tell the service that a client hung up while it waited for an answer: docs/CLIENTS.md says so. */
  hidesAborts: boolean;
  /** The language of its fence in the document. */
  fence: string;
  configure(example: string, setting: Setting): { files: Record<string, string>; command: [string, ...string[]] };
}

interface Setting {
  port: number;
  /** The port on which the service listens. */
  upstreamPort: number;
  folder: string;
  /** How long a silent connection lives. */
  readTimeoutSec: number;
}

const sbin = (name: string) => `/usr/sbin/${name}`;

export const proxies: KnownProxy[] = [
  {
    name: "nginx",
    probe: [sbin("nginx"), "-v"],
    package: "nginx-light",
    isUsual: true,
    losesRefusals: false,
    hidesAborts: false,
    fence: "nginx",
    configure(example, { port, folder, readTimeoutSec }) {
      const temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
      const server = example
        .replace("listen 443 ssl;", `listen ${port};`)
        .replace(/^ *ssl_.*\n/gm, "")
        .replace("proxy_read_timeout 1d;", `proxy_read_timeout ${readTimeoutSec}s;`);
      const user = process.getuid?.() === 0 ? "user root;\n" : "";
      const paths = temporary.map((name) => `${name}_temp_path ${folder}/${name};\n`).join("");
      const text = `${user}daemon off;\npid ${folder}/pid;\nevents {}\nhttp {\naccess_log off;\n${paths}${server}}\n`;
      const config = join(folder, "nginx.conf");
      return { files: { [config]: text }, command: [sbin("nginx"), "-e", "stderr", "-c", config] };
    },
  },
  {
    name: "HAProxy",
    probe: [sbin("haproxy"), "-v"],
    package: "haproxy",
    isUsual: false,
    losesRefusals: false,
    hidesAborts: true,
    fence: "haproxy",
    configure(example, { port, folder, readTimeoutSec }) {
      const config = join(folder, "haproxy.cfg");
      const text = example
        .replace(/bind :443 .*/, `bind :${port}`)
        .replace("timeout server 1d", `timeout server ${readTimeoutSec}s`)
        .replace("timeout tunnel 60s", `timeout tunnel ${readTimeoutSec}s`);
      return { files: { [config]: text }, command: [sbin("haproxy"), "-db", "-f", config] };
    },
  },
  {
    name: "Caddy",
    probe: ["caddy", "version"],
    package: "caddy",
    isUsual: false,
    losesRefusals: true,
    hidesAborts: false,
    fence: "caddy",
    // Without it Caddy waits for ever.
    configure(example, { port, folder, readTimeoutSec, upstreamPort }) {
      const config = join(folder, "Caddyfile");
      const asWritten = `reverse_proxy 127.0.0.1:${upstreamPort}\n`;
      const withTimeout = `${asWritten.trim()} {\ntransport http {\nread_timeout ${readTimeoutSec}s\n}\n}\n`;
      const text = `{\nadmin off\nstorage file_system ${folder}\n}\n${example.replace("capsule.example", `http://:${port}`).replace(asWritten, withTimeout)}`;
      return { files: { [config]: text }, command: ["caddy", "run", "--adapter", "caddyfile", "--config", config] };
    },
  },
  {
    name: "Apache",
    probe: [sbin("apache2"), "-v"],
    package: "apache2",
    isUsual: false,
    losesRefusals: true,
    hidesAborts: true,
    fence: "apache",
    configure(example, { port, folder, readTimeoutSec }) {
      const modules = ["mpm_event", "authz_core", "proxy", "proxy_http", "reqtimeout"];
      const host = example
        .replace("*:443", `*:${port}`)
        .replace(/^ *SSL.*\n/gm, "")
        .replace("timeout=86400", `timeout=${readTimeoutSec}`);
      const text = [
        ...(process.getuid?.() === 0 ? ["User www-data", "Group www-data"] : []),
        ...modules.map((name) => `LoadModule ${name}_module /usr/lib/apache2/modules/mod_${name}.so`),
        `ServerName capsule.test\nServerRoot ${folder}\nPidFile ${folder}/pid\nErrorLog ${folder}/logs/error\nListen ${port}`,
        "RequestReadTimeout header=20-40,minrate=500\nRequestReadTimeout body=10,minrate=500", // as Debian's
        host,
      ].join("\n");
      const config = join(folder, "apache.conf");
      return { files: { [config]: text }, command: [sbin("apache2"), "-X", "-f", config] };
    },
  },
];

/** A running proxy in front of the service. */
export class RunningProxy implements AsyncDisposable {
  readonly port: number;
  readonly #folder: string;
  readonly #process: ChildProcess;

  static async start(kind: KnownProxy, serviceUrl: string, readTimeoutSec: number): Promise<RunningProxy> {
    const folder = mkdtempSync(join(tmpdir(), "capsule-proxy-"));
    const port = Number(await lastingPort());
    const upstreamPort = Number(new URL(serviceUrl).port);
    const example = exampleOf(kind.fence).replaceAll("127.0.0.1:8080", `127.0.0.1:${upstreamPort}`);
    const { files, command } = kind.configure(example, { port, upstreamPort, folder, readTimeoutSec });
    mkdirSync(join(folder, "logs"));
    for (const [path, text] of Object.entries(files)) writeFileSync(path, text);
    const proxy = new RunningProxy(port, folder, command);
    try {
      await waitFor(`${kind.name} listens`, () => proxy.#listens(), { deadlineMs: startDeadlineMs });
    } catch (error) {
      await proxy[Symbol.asyncDispose]();
      throw error;
    }
    return proxy;
  }

  private constructor(port: number, folder: string, command: [string, ...string[]]) {
    this.port = port;
    this.#folder = folder;
    const env = { ...process.env, HOME: folder };
    this.#process = spawn(command[0], command.slice(1), { env, stdio: ["ignore", "ignore", "inherit"] });
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** The bytes that it and its children have written to disks, of unlinked files too. */
  writtenBytes(): number {
    const pid = this.#process.pid as number;
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").split(" ").filter(Boolean);
    const bytesOf = (each: string) => /^write_bytes: (\d+)/m.exec(readFileSync(`/proc/${each}/io`, "utf8"))?.[1];
    return [String(pid), ...children].reduce((sum, each) => sum + Number(bytesOf(each)), 0);
  }

  async #listens(): Promise<boolean> {
    if (this.#process.exitCode !== null) throw new Error(`the proxy ended with ${this.#process.exitCode}`);
    const socket = connect(this.port, "127.0.0.1");
    return new Promise((resolve) => {
      socket.once("connect", () => resolve(true)).once("error", () => resolve(false));
    }).then((isOpen) => {
      socket.destroy();
      return isOpen as boolean;
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#process.exitCode === null && this.#process.signalCode === null) {
      const gone = once(this.#process, "exit");
      this.#process.kill("SIGTERM");
      await gone;
    }
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function exampleOf(fence: string): string {
  const found = new RegExp(`^\`\`\`${fence}\\n(.*?)^\`\`\`$`, "ms").exec(readFileSync(operations, "utf8"))?.[1];
  if (found === undefined) throw new Error(`docs/operations/expose.md has no example for ${fence}`);
  return found;
}
