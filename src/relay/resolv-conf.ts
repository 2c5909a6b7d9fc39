/** The host's resolvers, from resolv.conf, which is looked at every two seconds. */
import { readFileSync } from "node:fs";
import { stat } from "node:fs/promises";
import { isIP } from "node:net";

const lookMs = 2_000;
/** The most that the C library reads. */
const resolversMax = 3;

/** The addresses of the text's `nameserver` lines. */
export function resolversIn(text: string): string[] {
  const named = [...text.matchAll(/^[ \t]*nameserver[ \t]+(\S+)/gm)].map(([, address]) => address!);
  return named.filter((address) => isIP(address) !== 0).slice(0, resolversMax);
}

export interface ResolvConf {
  /** Empty: none, or the file cannot be read. */
  resolvers: string[];
  close(): void;
}

/** `onChange` is called with the resolvers whenever they have become others. */
export function watchResolvers(onChange: (resolvers: string[]) => void, path = "/etc/resolv.conf"): ResolvConf {
  let resolvers = read(path);
  let seen = "";
  let isLooking = false;
  let isClosed = false;
  const look = async () => {
    if (isLooking) return;
    isLooking = true;
    const { mtimeNs, ino, size } = await stat(path, { bigint: true }).catch(() => ({ mtimeNs: 0, ino: 0, size: 0 }));
    isLooking = false;
    const now = `${mtimeNs} ${ino} ${size}`;
    if (now === seen || isClosed) return;
    seen = now;
    const found = read(path);
    if (found.join() === resolvers.join()) return;
    resolvers = found;
    onChange(found);
  };
  const timer = setInterval(() => void look(), lookMs);
  timer.unref();
  const close = () => {
    isClosed = true;
    clearInterval(timer);
  };
  return { resolvers, close };
}

function read(path: string): string[] {
  try {
    return resolversIn(readFileSync(path, "utf8"));
  } catch {
    return [];
  }
}
