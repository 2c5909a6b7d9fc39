/** A port for a server that is to come back on it: neither the kernel nor another test gives it to a program meanwhile. */
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type ListenOptions, type Server } from "node:net";
import { waitFor } from "./wait-for.ts";

const first = 10_000;

/**
 * A free port below those that the kernel gives to programs that ask for any; with `count` the first of so many in a row. They are this
 * process's until it ends.
 */
export async function lastingPort(count = 1): Promise<string> {
  const [given = 0] = readFileSync("/proc/sys/net/ipv4/ip_local_port_range", "utf8").split("\t").map(Number);
  return waitFor(`a free port from ${first} to ${given}`, async () => {
    const port = first + Math.floor(Math.random() * (given - first - count));
    const claims: Server[] = [];
    while (claims.length < count) {
      const claim = await claimed(port + claims.length);
      if (claim === undefined) break;
      claims.push(claim);
    }
    if (claims.length === count) return String(port);
    for (const claim of claims) claim.close();
    return undefined;
  });
}

async function claimed(port: number): Promise<Server | undefined> {
  // A name that all processes of this network share, and that ends with its process.
  const claim = await listening({ path: `\0capsule-test-port-${port}` });
  const server = claim && (await listening({ port, host: "127.0.0.1" }));
  if (server === undefined) claim?.close();
  else await new Promise((resolve) => server.close(resolve));
  return server && claim;
}

/** undefined: another one listens there. */
async function listening(at: ListenOptions): Promise<Server | undefined> {
  const server = createServer().unref().listen(at);
  return await once(server, "listening").then(
    () => server,
    () => undefined,
  );
}
