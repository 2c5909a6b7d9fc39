/** The service's port: free, or held by whom; or the sockets that systemd keeps over restarts and passes on. */
import { lookup } from "node:dns/promises";
import { readdirSync, readFileSync, readlinkSync } from "node:fs";
import { type AddressInfo, createServer, type ListenOptions, type Server } from "node:net";
import type { App } from "./route.ts";

/** Connections that the kernel keeps until they are accepted; it lowers this to net.core.somaxconn, 4 096 by default. */
const unacceptedMax = 4_096;
/** The first passed descriptor, as sd_listen_fds(3) says. */
const firstPassed = 3;
const passedMax = 16;

export interface Binding {
  host: string;
  port: number;
}

/** The number of sockets that were passed to this process. */
export function passedSockets({ LISTEN_PID, LISTEN_FDS } = process.env, pid = process.pid): number {
  const count = Number(LISTEN_FDS);
  return Number(LISTEN_PID) === pid && Number.isInteger(count) && count > 0 ? Math.min(count, passedMax) : 0;
}

/**
 * Resolves with the host to listen on: 127.0.0.1 for a localhost whose first address this machine lacks. Throws when the port
 * is taken, and says by whom. Port 0 is always free.
 */
export async function requireFreePort({ host, port }: Binding): Promise<string> {
  if (port === 0 && host !== "localhost") return host;
  try {
    await bindOnce({ host, port });
    return host;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EADDRINUSE") throw taken({ host, port });
    if (host === "localhost" && (code === "EADDRNOTAVAIL" || code === "EAFNOSUPPORT")) {
      return requireFreePort({ host: "127.0.0.1", port });
    }
    throw new Error(`CAPSULE_HOST and CAPSULE_PORT: ${(error as Error).message}`, { cause: error });
  }
}

function bindOnce(binding: Binding): Promise<void> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen({ ...binding, exclusive: true }, () => server.close(() => resolve()));
  });
}

function taken({ host, port }: Binding): Error {
  const holder = holderOf({ host, port }) ?? "another process";
  return new Error(`${host}:${port} is in use by ${holder}; CAPSULE_PORT sets another port, 0 any free one`);
}

/**
 * Resolves with the URL. Listens on the passed sockets, if there are any, and with host localhost on each of its addresses. `check` is
 * called with the address of each, before a connection is accepted, and may throw. All are served by `app.server`: Fastify would give
 * the further addresses of localhost servers of their own, without its bounds.
 */
export async function listen(
  app: App,
  binding: Binding,
  passed: number,
  check: (address: string) => void = () => {},
): Promise<string> {
  const [first = binding.host, ...further] = passed === 0 ? await addressesOf(binding.host) : ["127.0.0.1"];
  const options = passed > 0 ? { fd: firstPassed, host: first, port: 0 } : { host: first, port: binding.port };
  const url = await app.listen({ ...options, backlog: unacceptedMax });
  const { address, port } = app.server.address() as AddressInfo;
  check(address);
  const others: Server[] = [];
  app.server.once("close", () => {
    for (const other of others) other.close();
  });
  const listenToo = async (at: ListenOptions | { fd: number }) => {
    const other = createServer({ allowHalfOpen: true }, (socket) => app.server.emit("connection", socket));
    await new Promise<void>((resolve, reject) => {
      other.once("error", reject);
      other.listen({ ...at, backlog: unacceptedMax }, resolve);
    });
    others.push(other);
    check((other.address() as AddressInfo).address);
  };
  for (let fd = firstPassed + 1; fd < firstPassed + passed; fd++) await listenToo({ fd });
  for (const host of further) await listenToo({ host, port }).catch(() => {}); // an address that this machine lacks, or a taken port
  return url;
}

/** The addresses of localhost, which are those of this machine's own name service; any other host is itself. */
async function addressesOf(host: string): Promise<string[]> {
  if (host !== "localhost") return [host];
  const found = await lookup(host, { all: true }).catch(() => []);
  return [...new Set(found.map(({ address }) => address))];
}

/** The process that listens there, as far as this user may see it. */
export function holderOf(binding: Binding, proc = "/proc"): string | undefined {
  const inodes = new Set(["tcp", "tcp6"].flatMap((table) => listeners(readText(`${proc}/net/${table}`), binding)));
  if (inodes.size === 0) return undefined;
  for (const pid of readdirSync(proc).filter((name) => /^\d+$/.test(name))) {
    for (const fd of namesIn(`${proc}/${pid}/fd`)) {
      const inode = /^socket:\[(\d+)\]$/.exec(linkOf(`${proc}/${pid}/fd/${fd}`))?.[1];
      if (inode !== undefined && inodes.has(inode)) return `${nameOf(`${proc}/${pid}`)} (pid ${pid})`;
    }
  }
  return undefined;
}

/** Inodes of sockets that listen on the port, and on the host, on all, or, for a host of all, on any. */
export function listeners(table: string, { host, port }: Binding): string[] {
  const hosts = { localhost: ["127.0.0.1", "::1"] }[host] ?? [host];
  const isAll = (address: string) => /^[0:.]+$/.test(address);
  return table
    .split("\n")
    .slice(1)
    .flatMap((line) => {
      const [, local = "", , state, , , , , , inode = ""] = line.trim().split(/\s+/);
      const [hex = "", hexPort = ""] = local.split(":");
      if (state !== "0A" || Number.parseInt(hexPort, 16) !== port) return [];
      const address = addressOf(hex);
      return isAll(address) || hosts.some((each) => isAll(each) || each === address) ? [inode] : [];
    });
}

/** The kernel writes hexadecimal words, each in the order of this machine: little-endian. */
function addressOf(hex: string): string {
  const bytes = (hex.match(/.{8}/g) ?? []).flatMap((word) => word.match(/../g)!.reverse());
  const numbers = bytes.map((byte) => Number.parseInt(byte, 16));
  if (numbers.length === 4) return numbers.join(".");
  const isMapped = numbers.slice(0, 10).every((byte) => byte === 0) && numbers[10] === 255;
  if (isMapped) return numbers.slice(12).join(".");
  if (numbers.slice(0, 15).every((byte) => byte === 0)) return numbers[15] === 1 ? "::1" : "::";
  return bytes.join("");
}

function nameOf(folder: string): string {
  const words = readText(`${folder}/cmdline`).split("\0");
  if (words.includes("serve") && words.some((word) => word.endsWith("src/main.ts"))) return "another Capsule server";
  return readText(`${folder}/comm`).trim() || "a process";
}

function readText(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return ""; // of another user, or ended
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return "";
  }
}
