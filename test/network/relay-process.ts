/** Finds the process of a server's relay. */
import { readdirSync, readFileSync } from "node:fs";

/** The process of the server's relay, without those of its jail; undefined between two lives. */
export function relayOf(server: number): number | undefined {
  const isBelow = (pid: number): boolean => pid === server || (pid > 1 && isBelow(parentOf(pid)));
  const pids = readdirSync("/proc").filter((name) => /^\d+$/.test(name));
  const relays = pids.map(Number).filter((pid) => commandOf(pid).includes("relay/program.ts") && isBelow(pid));
  return relays.find((pid) => !relays.some((other) => parentOf(other) === pid));
}

const parentOf = (pid: number) => Number(/^PPid:\t(\d+)$/m.exec(textOf(pid, "status"))?.[1] ?? 0);
const commandOf = (pid: number) => textOf(pid, "cmdline");

function textOf(pid: number, file: string): string {
  try {
    return readFileSync(`/proc/${pid}/${file}`, "utf8");
  } catch {
    return ""; // it has just ended
  }
}
