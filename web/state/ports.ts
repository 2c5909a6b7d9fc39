/** Ports of a capsule: as rows of a table, and as text in a form. */
import type { PortInfo } from "../../src/sdk/sdk.ts";

/** A port on which a server listens, or which is public. */
export interface PortRow {
  port: number;
  /** Empty: none listens. */
  programs: readonly string[];
  addresses: readonly string[];
  isPublic: boolean;
  url: string;
}

/** One row for each port, in their order. `portUrl` has `{port}` in the port's place. */
export function portRows(listening: readonly PortInfo[], isPublic: ReadonlySet<number>, portUrl: string): PortRow[] {
  const numbers = new Set([...listening.map(({ port }) => port), ...isPublic]);
  return [...numbers]
    .sort((one, other) => one - other)
    .map((port) => {
      const sockets = listening.filter((each) => each.port === port);
      return {
        port,
        programs: [...new Set(sockets.map(programOf))],
        addresses: [...new Set(sockets.map(({ address }) => address))],
        isPublic: isPublic.has(port),
        url: portUrl.replace("{port}", String(port)),
      };
    });
}

const nameMaxChars = 200;

function programOf({ cmd, pid }: PortInfo): string {
  if (pid === null) return "unknown";
  return `${cmd.length > nameMaxChars ? `${cmd.slice(0, nameMaxChars)}…` : cmd} (PID ${pid})`;
}

/** Numbers between spaces and commas. A word that is none is NaN, which the service refuses with its place. */
export function portsIn(text: string): number[] {
  const words = text.split(/[\s,]+/).filter((word) => word !== "");
  return words.map((word) => (/^[0-9]+$/.test(word) ? Number(word) : Number.NaN));
}

/** Lines that are not empty, without spaces around. */
export function linesIn(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}
